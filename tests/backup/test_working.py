"""Copies at the same time: the first failure ends them all, as itself."""

from __future__ import annotations

import asyncio

import pytest

from polynya.backup.progress import COPIES, at_once
from polynya.base.errors import CorruptData


def test_the_first_failure_is_raised_as_itself_and_ends_the_others() -> None:
    begun = ended = 0

    async def work() -> None:
        nonlocal begun, ended
        begun += 1
        if begun == COPIES:
            raise CorruptData("the last one to begin")
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    with pytest.raises(CorruptData, match="the last one to begin"):
        asyncio.run(at_once(work))
    assert ended == COPIES - 1


def test_a_defect_of_the_program_is_not_taken_for_a_failure() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(at_once(work))
    assert raised.group_contains(ZeroDivisionError)
