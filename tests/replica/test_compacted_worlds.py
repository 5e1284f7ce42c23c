"""Key compaction in a simulated cluster: what readers, tables and forks see is true whatever fails, and
defects of compaction are found."""

from __future__ import annotations

import pytest
from sim.compacted import run_compacted
from sim.compaction_mutants import COMPACTION
from sim.known_catches import CAUGHT_BY
from sim.mutant_runs import check_fault
from sim.mutants import mutated

TRIED = ("the first of a key stays in the map",)  # always; the others in the long tests


@pytest.mark.parametrize("seed", [0, 3])
def test_the_last_value_of_each_key_stays_whatever_fails(seed: int) -> None:
    run_compacted(seed, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_the_last_value_of_each_key_stays_in_many_worlds(seed: int) -> None:
    run_compacted(seed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in TRIED else [pytest.mark.long]) for name in COMPACTION],
)
def test_the_world_finds_the_defect(name: str) -> None:
    with mutated(name) as raised, pytest.raises(Exception) as found:  # noqa: PT011
        CAUGHT_BY[name].run()
    assert raised == []
    check_fault(found.value)
