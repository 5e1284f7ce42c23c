"""The safety of Raft under faults drawn from seeds, that it comes together after them, and that a
seed is always the same story."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import examples, long
from sim import raft_chaos


@pytest.mark.parametrize("seed", [*range(6), *long(range(6, 16))])
def test_nothing_is_lost_and_the_group_comes_together(seed: int) -> None:
    raft_chaos.run(seed, 300)


@given(st.integers(10**6, 10**9))
@settings(
    max_examples=examples(10),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_any_seed(seed: int) -> None:
    raft_chaos.run(seed, 200)


def test_the_same_seed_is_the_same_story() -> None:
    def story() -> str:
        chaos = raft_chaos.Chaos(5)
        chaos.world.trace = []
        chaos.run(300)
        return hashlib.sha256("\n".join(chaos.world.trace).encode()).hexdigest()

    assert story() == story()


def test_the_faults_happen() -> None:
    """A chaos in which nothing happens would find nothing."""
    happened: dict[str, int] = {}
    for seed in range(12):
        chaos = raft_chaos.Chaos(seed)
        chaos.world.trace = []
        chaos.run(300)
        for word in (
            "installs",
            "commits voters",
            "outgoing",
            "TimeoutNow",
            "is leader",
            "is read",
            "rejected",
            "quiesce=yes",
            "SnapshotChunk",
            "applies",
        ):
            happened[word] = happened.get(word, 0) + sum(word in line for line in chaos.world.trace)
    assert min(happened.values()) >= 3, happened
