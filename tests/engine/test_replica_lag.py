"""Lag of a read replica, in entries and in time, also while it is silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from polynya.engine.replicas.lag import ReplicaLag


class World:
    """One group that is led here, a read replica 4 of it, and a clock."""

    def __init__(self) -> None:
        self.peer = SimpleNamespace(match=10, lost=False)
        self.raft = SimpleNamespace(
            commit=10,
            configuration=SimpleNamespace(readers=(4, 5)),
            peers={4: self.peer, 5: self.peer},
        )
        self.now = 100.0
        core: Any = SimpleNamespace(led={1: None}, members={1: SimpleNamespace(raft=self.raft)})
        self.core = core
        self.lag = ReplicaLag(core, lambda: {4}, lambda: self.now)

    def after(self, seconds: float, *, commit: int, match: int) -> tuple[int, float]:
        self.now += seconds
        self.raft.commit, self.peer.match = commit, match
        return self.lag.lags()[4]


def test_a_read_replica_that_has_all_is_not_behind_and_one_that_follows_is_by_entries_alone() -> (
    None
):
    world = World()
    assert world.after(0, commit=10, match=10) == (0, 0.0)
    assert world.after(1, commit=20, match=18) == (2, 0.0), (
        "what is on its way was committed since the last look"
    )
    assert world.after(1, commit=30, match=28) == (2, 0.0)
    assert world.lag.samples() == {
        'polynya_reader_lag_entries{node="4"}': 2,
        'polynya_reader_lag_seconds{node="4"}': 0.0,
    }


def test_the_seconds_count_until_it_has_what_was_committed_then() -> None:
    world = World()
    world.after(0, commit=20, match=10)
    assert world.after(3, commit=40, match=19) == (21, 3.0)
    assert world.after(2, commit=60, match=21) == (39, 5.0), (
        "what it lacked took five seconds to get there"
    )
    assert world.after(1, commit=60, match=60) == (0, 0.0)


def test_what_it_had_counts_while_it_is_away() -> None:
    world = World()
    world.after(0, commit=10, match=10)
    world.peer.lost = True
    assert world.after(1, commit=12, match=0) == (2, 0.0)
    assert world.after(4, commit=12, match=0) == (2, 4.0)
    world.core.led.clear()
    assert world.lag.lags() == {}
