"""The worlds of leased streams, of changes of the profile, of consumer groups and of transactions find the defects for
which they have clients, schedules and promises; and the same runs pass without the defect."""

from __future__ import annotations

import pytest
from sim.coordinator_mutants import COORDINATOR_CAUGHT_BY
from sim.known_catches import CAUGHT_BY
from sim.mutant_runs import check_fault
from sim.mutants import mutated
from sim.world_mutants import WORLD_CAUGHT_BY

NAMES = [*WORLD_CAUGHT_BY, *COORDINATOR_CAUGHT_BY]


@pytest.mark.parametrize("name", NAMES)
def test_a_world_finds_the_defect(name: str) -> None:
    with mutated(name) as raised, pytest.raises(Exception) as found:  # noqa: PT011
        CAUGHT_BY[name].run()
    assert raised == []
    check_fault(found.value)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_same_run_passes_without_the_defect(name: str) -> None:
    CAUGHT_BY[name].run()
