"""Each defect of the list is caught by one of the first seeds."""

from __future__ import annotations

import pytest
from sim_chaos import run_episode
from sim_mutants import MUTANTS, mutated

from polynya.base.errors import CorruptData

SEEDS = 24
FIRST = {  # a seed that is known to catch it, when none of the first few does
    "a lease has no end": 8,
    "proposals are taken before the own term's entry": 12,
    "segments go that the log needs": 14,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_is_caught(name: str) -> None:
    with mutated(name):
        for seed in (FIRST.get(name, 0), *range(SEEDS)):
            try:
                run_episode(seed)
            except (AssertionError, CorruptData):
                return
    pytest.fail(f"not caught by {SEEDS} seeds: {name}")
