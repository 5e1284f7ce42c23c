"""Appends to streams of several groups in a simulated cluster: all or none whatever fails, and defects
are found."""

from __future__ import annotations

import pytest
from sim.known_catches import CAUGHT_BY
from sim.mutant_runs import check_fault
from sim.mutants import mutated
from sim.together import run_together
from sim.together_mutants import TOGETHER

LONG = 2  # the first defects are tried always


@pytest.mark.parametrize("seed", [0, 1])
def test_all_or_none_whatever_fails(seed: int) -> None:
    run_together(seed, 8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_all_or_none_in_many_worlds(seed: int) -> None:
    run_together(seed)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if number >= LONG else [])
        for number, name in enumerate(TOGETHER)
    ],
)
def test_the_world_finds_the_defect(name: str) -> None:
    with mutated(name) as raised, pytest.raises(Exception) as found:  # noqa: PT011
        CAUGHT_BY[name].run()
    assert raised == []
    check_fault(found.value)
