"""What CI leaves out, and `make long` and `make evidence` run: tests with a mark, and most examples
of Hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from commit_seed import commit_seed
from hypothesis import settings


def long(cases: Iterable[Any]) -> list[Any]:
    """These cases of a parametrized test run in `make long`; a tuple is a case of several
    arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]


def in_turn(cases: Iterable[Any], of: int) -> list[Any]:
    """One case of so many runs in CI, others with another commit, and the rest in `make long`."""
    turn = commit_seed() % of
    return [case if number % of == turn else long([case])[0] for number, case in enumerate(cases)]


def examples(number: int) -> int:
    """Return how many examples are tried where `make long` tries that many: the share that the
    profile has of the usual hundred."""
    return max(1, number * settings.default.max_examples // 100)
