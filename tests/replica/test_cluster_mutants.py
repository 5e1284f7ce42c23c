"""Each defect of the list is caught by a test, by one of the first seeds, or by both. A mutant that
does not fit the code fails the run.

CI tries a twentieth of them, and whether all fit the code. `make mutants` and `make hunt` try all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from long_tests import every_nth, long
from sim.mutant_runs import Trials
from sim.mutants import MUTANTS, NOTICED, mutated

# no short run is known that catches these: each takes seconds or minutes of seeds
SLOW = (
    "a 409 is taken for one's own earlier try",
    "a lease is given twice",
    "a vote counts that is none",
    "an older epoch is taken",
    "it is said to be durable before it is",
    "updates that a node had when it died are lost",
    "only the last portion of payload is copied",
    "packs that no log knows are never deleted",
    "proposals are taken before the own term's entry",
    "resets are not written",
    "segments go that the log needs",
)
ALL = MUTANTS | NOTICED


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials("sim.mutants") as trials:
        yield trials


def test_slow_mutants_are_known() -> None:
    assert ALL.keys() >= set(SLOW)


def test_defects_fit_the_code() -> None:
    for name in ALL:
        with mutated(name) as raised:
            assert raised == []


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [*every_nth((name for name in ALL if name not in SLOW), 20), *long(SLOW)]
)
def test_a_defect_is_caught(trials: Trials, name: str) -> None:
    assert trials.caught(name), f"nothing notices: {name}"
