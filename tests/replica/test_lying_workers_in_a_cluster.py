"""Workers of a reducer that lie at times, in a simulated cluster: the first state of some records stays
whatever fails, a second one stops the reducer, and defects are found."""

from __future__ import annotations

import pytest
from long_tests import long
from sim.known_catches import CAUGHT_BY
from sim.mutant_runs import check_fault
from sim.mutants import mutated
from sim.reduced import run_reduced, run_reduced_moves
from sim.reduced_mutants import REDUCED


@pytest.mark.parametrize("seed", [2, 3, 5, 18, *long((*range(20, 60), *range(1000, 1020)))])
def test_the_first_state_stays_whatever_fails(seed: int) -> None:
    run_reduced(seed, 12 if seed < 20 else 25)


@pytest.mark.parametrize("seed", [1, *long(range(2, 20))])
def test_it_stays_while_groups_move(seed: int) -> None:
    run_reduced_moves(seed, 12)


@pytest.mark.parametrize("name", REDUCED)
def test_the_world_finds_the_defect(name: str) -> None:
    with mutated(name) as raised, pytest.raises(Exception) as found:  # noqa: PT011
        CAUGHT_BY[name].run()
    assert raised == []
    check_fault(found.value)
