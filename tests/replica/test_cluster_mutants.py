"""Each defect of the list is caught by a test, by one of the first seeds, or by both. A mutant that
does not fit the code fails the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from long_tests import long
from sim.mutant_runs import Trials
from sim.mutants import MUTANTS, NOTICED

# no short run is known that catches these: each takes minutes of seeds
MINUTES = {
    "a 409 is taken for one's own earlier try",
    "a lease is given twice",
    "a vote counts that is none",
}
ALL = MUTANTS | NOTICED


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials("sim.mutants") as trials:
        yield trials


def test_slow_mutants_are_known() -> None:
    assert ALL.keys() >= MINUTES


@pytest.mark.parametrize(
    "name", [*(name for name in ALL if name not in MINUTES), *long(sorted(MINUTES))]
)
def test_a_defect_is_caught(trials: Trials, name: str) -> None:
    assert trials.caught(name), f"nothing notices: {name}"
