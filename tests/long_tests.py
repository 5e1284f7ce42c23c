"""The mark of what CI leaves out: `make long` and `make evidence` run it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long(cases: Iterable[Any]) -> list[Any]:
    """These cases of a parametrized test run in `make long`; a tuple is a case of several
    arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]
