"""Transactions of Kafka in a simulated cluster, with a scripted coordinator: what clients were told is
true, and defects of a stream as a participant are found."""

from __future__ import annotations

import pytest
from sim.known_catches import CAUGHT_BY
from sim.mutant_runs import check_fault
from sim.mutants import mutated
from sim.transaction_mutants import TRANSACTION
from sim.transactional import run_transactions

LONG = 3  # the first defects are tried always


@pytest.mark.parametrize("seed", [0, 1])
def test_transactions_are_whole_whatever_fails(seed: int) -> None:
    run_transactions(seed, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_transactions_are_whole_in_many_worlds(seed: int) -> None:
    run_transactions(seed)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if number >= LONG else [])
        for number, name in enumerate(TRANSACTION)
    ],
)
def test_the_world_finds_the_defect(name: str) -> None:
    with mutated(name) as raised, pytest.raises(Exception) as found:  # noqa: PT011
        CAUGHT_BY[name].run()
    assert raised == []
    check_fault(found.value)
