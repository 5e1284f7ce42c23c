"""The evidence page says what the numbers say, and names tests that are there."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos.evidence import PAGE, RESULTS  # noqa: E402  (not a part of the package)
from chaos.found import FOUND  # noqa: E402
from chaos.page import Chaos, Mutant, Results, Simulation, written  # noqa: E402


def test_the_page_is_made_of_the_numbers_that_are_kept() -> None:
    assert PAGE.read_text() == written(msgspec.json.decode(RESULTS.read_bytes(), type=Results)), "run python -m chaos.evidence --write"


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.what[:40])
def test_what_was_found_has_a_test(found: object) -> None:
    missing = [path for path in found.test.split(", ") if not (ROOT / path).exists()]  # type: ignore[attr-defined]
    assert not missing


def test_what_is_wrong_is_not_hidden() -> None:
    def chaos(*wrong: str) -> Chaos:
        counts = {"acknowledged": 1, "refused": 0, "unknown": 0, "reads": 0, "tailed": 0}
        times = {"seconds": 1.0, "longest_pause": 0.0, "slowest_recovery": 0.0}
        return Chaos(
            command="c",
            network="loopback",
            episodes=1,
            faults={"kill all": 1},
            skipped={"x": "no root"},
            wrong=list(wrong),
            **counts,
            **times,
        )  # type: ignore[arg-type]

    fine = Results(date="2026-01-01", chaos=[chaos()], mutants=[Mutant("raft", "votes twice", "seed 1")], simulation=Simulation(seeds=5))
    assert not fine.wrong and "| nothing |" in written(fine) and "x: no root" in written(fine) and "none failed" in written(fine)
    for results, told in (
        (Results(date="d", chaos=[chaos("lost: w.1.0")]), "| 1 |"),
        (Results(date="d", mutants=[Mutant("raft", "votes twice", "")]), "**survives**"),
        (Results(date="d", simulation=Simulation(seeds=5, failed=[7])), "failed: 7"),
    ):
        assert results.wrong and told in written(results)
