"""Defects in the writer of diskless streams and in its commits; sim/mutants.py tries them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold.steps import Steps
from polynya.diskless.commit import _Chain
from polynya.diskless.writer import Writer
from polynya.objectstore.api import StoreError, put_again
from polynya.stream.features.packs.commands import PackWritten

_PUTS: set[asyncio.Future[None]] = set()  # without a waiting caller


async def _beside_everything(  # noqa: PLR0913
    steps: Steps,
    key: str,
    parts: Sequence[bytes],
    owner_group: int,
    groups: list[int],
    seconds: float,
    leaves: Callable[[], bool],
) -> int:
    """Run the put without waiting for it."""

    async def put() -> None:
        try:
            await put_again(steps.store, key, parts)
        except StoreError:
            return

    now_ms = steps.groups.now_ms()
    _PUTS.add(asyncio.ensure_future(put()))
    await steps.groups.propose(owner_group, PackWritten(key, groups, now_ms))
    return now_ms


DISKLESS_WRITER: dict[str, tuple[Any, str, Any]] = {
    "diskless appends are committed before they are stored": (
        Steps,
        "write_beside",
        _beside_everything,
    ),
    "a repeated commit has another number": (
        _Chain,
        "_final",
        edited_function(
            _Chain._final,
            "command = structs.replace(command, now_ms=self._commits.now_ms())",
            "command = structs.replace(command, sequence=self._sequence)\nself._sequence += 1",
        ),
    ),
    "a commit that may have been applied gets another intent": (
        _Chain,
        "_final",
        edited_function(
            _Chain._final,
            "intent_ms = None if unknown else self._corrected(command, pack, outcome)",
            "intent_ms = self._corrected(command, pack, outcome)",
        ),
    ),
    "diskless appends are answered before the commit": (
        Writer,
        "_put_at",
        edited_function(
            Writer._put_at,
            "for taken, fault in built.failed:\n    taken.done(fault)",
            "for taken in buffer.taken:\n    taken.done(Reply(Code.OK))",
        ),
    ),
    "commits of one writer to one group overtake each other": (
        _Chain,
        "_run",
        edited_function(
            _Chain._run,
            "await self._commit(part)",
            "asyncio.ensure_future(self._commit(part))",
        ),
    ),
}
DISKLESS_WRITER_STORIES = {
    "a commit that may have been applied gets another intent": (
        "diskless/test_diskless_writer.py::"
        "test_a_commit_whose_group_forgot_the_writer_is_not_applied_again"
    ),
    "commits of one writer to one group overtake each other": (
        "diskless/test_diskless_writer.py::test_an_unknown_outcome_is_repeated_and_applied_once"
    ),
}
DISKLESS_WRITER_CAUGHT_BY = {
    name: ("swarm", Knobs(seed, {}, {}, {"diskless": 3}), 15)
    for name, seed in (
        ("diskless appends are committed before they are stored", 3),
        ("a repeated commit has another number", 26),
        ("diskless appends are answered before the commit", 3),
    )
}
