"""Each defect of the list is caught by a test, by one of the first seeds, or by both. A mutant that
does not fit the code fails the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sim.mutant_runs import Trials
from sim.mutants import MUTANTS, NOTICED


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials("sim.mutants") as trials:
        yield trials


@pytest.mark.parametrize("name", MUTANTS | NOTICED)
def test_a_defect_is_caught(trials: Trials, name: str) -> None:
    assert trials.caught(name), f"nothing notices: {name}"
