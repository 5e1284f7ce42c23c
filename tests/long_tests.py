"""Tests outside CI, for `make long` and `make evidence`: tests with a mark, and most examples of
Hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def long(cases: Iterable[Any]) -> list[Any]:
    """Mark these cases of a parametrized test for `make long`; a tuple is a case of several
    arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]


def every_nth(cases: Iterable[Any], n: int) -> list[Any]:
    """Let every n-th case run in CI, from the first on, and the rest in `make long`."""
    return [case if number % n == 0 else long([case])[0] for number, case in enumerate(cases)]


def examples(number: int) -> int:
    """Return how many examples are tried where `make long` tries that many: the share that the
    profile has of the usual hundred."""
    return max(1, number * settings.default.max_examples // 100)
