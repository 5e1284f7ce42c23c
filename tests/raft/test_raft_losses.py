"""Disk losses during a group's creation, one after the other, and of a majority: when there must
be a leader, and which states must never occur."""

from __future__ import annotations

import pytest
from long_tests import long
from sim import raft_losses


@pytest.mark.parametrize("seed", [*range(6), *long(range(6, 16))])
def test_a_disk_that_is_lost_while_a_group_is_born_does_not_keep_it_from_having_a_leader(
    seed: int,
) -> None:
    raft_losses.run(seed, raft_losses.Births)


@pytest.mark.parametrize("seed", [*range(4), *long(range(4, 12))])
def test_another_disk_may_go_while_the_first_still_learns(seed: int) -> None:
    raft_losses.run(seed, raft_losses.Seconds)


# 19: it waited for who was out of the group; 89: a sleeping group elected for no reason
@pytest.mark.parametrize("seed", [0, 19, 89, *long(range(1, 6))])
def test_a_disk_that_is_lost_while_members_change_is_no_lost_voice(seed: int) -> None:
    raft_losses.run(seed, raft_losses.Moves, 500)


@pytest.mark.parametrize("seed", [*range(3), 39, *long(range(3, 10))])
def test_nothing_is_forgotten_whoever_loses_a_disk(seed: int) -> None:
    raft_losses.run(seed, raft_losses.Losses)


def test_the_losses_happen() -> None:
    """Lose a majority, and a second disk before the first member has relearned everything."""
    worlds = [raft_losses.run(seed, raft_losses.Seconds) for seed in range(8)]
    assert (
        sum(bool(world.second) for world in worlds if isinstance(world, raft_losses.Seconds)) >= 3
    )
    assert any(
        world.world.leader() is None
        for world in (raft_losses.run(seed, raft_losses.Losses) for seed in range(10, 16))
    )
