"""The model of transactions keeps all rules, and each defect of it is caught."""

from __future__ import annotations

import pytest
from long_tests import long
from transaction_model.mutants import CAUGHT_BY, EDITS, applied, first_catch
from transaction_model.run import WORLDS, play

pytestmark = pytest.mark.timeout(300)
SEEDS = 6  # of each world
CATCHING = sorted({*CAUGHT_BY.values()} - {(world, n) for world in WORLDS for n in range(SEEDS)})


@pytest.mark.parametrize("world", WORLDS)
def test_the_model_keeps_the_rules(world: str) -> None:
    assert {seed: found for seed in range(SEEDS) if (found := play(world, seed))} == {}


@pytest.mark.parametrize(("world", "seed"), CATCHING)
def test_a_run_that_catches_is_not_at_fault(world: str, seed: int) -> None:
    assert play(world, seed) == []


@pytest.mark.parametrize("name", EDITS)
def test_a_mutant_is_caught(name: str) -> None:
    with applied(EDITS[name]):
        assert play(*CAUGHT_BY[name]), "the checker found nothing wrong"


def test_the_same_seed_is_the_same_run() -> None:
    name = "the merger does not set flag 4"
    with applied(EDITS[name]):
        assert play(*CAUGHT_BY[name]) == play(*CAUGHT_BY[name])


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_many_runs_keep_the_rules(world: str) -> None:
    assert {seed: found for seed in range(SEEDS, 100) if (found := play(world, seed))} == {}


@pytest.mark.parametrize("name", long(EDITS))
def test_a_mutant_is_caught_by_some_seed(name: str) -> None:
    assert first_catch(name, 200, [CAUGHT_BY[name][0]]) is not None
