"""Diskless streams in a simulated cluster, whose nodes, network, disks and object store fail:
nothing acknowledged is lost, twice or out of order, and nothing refused is there."""

from __future__ import annotations

import pytest
from long_tests import every_nth, long
from sim.knobs import Knobs
from sim.swarm import SwarmEpisode

ALL = {"diskless": 3}  # thirds of the streams


@pytest.mark.parametrize("seed", every_nth([3, 9, 13], 3))
def test_nothing_acknowledged_by_a_writer_is_lost(seed: int) -> None:
    episode = SwarmEpisode(seed, 15, knobs=Knobs(seed, {}, {}, ALL))
    episode.play()
    tiers = [node.tier for node in episode.world.nodes.values() if node.tier is not None]
    assert sum(tier.writer.counters.packs for tier in tiers) > 10


@pytest.mark.parametrize("seed", [2, *long([14, 66])])
def test_commits_are_recovered_from_the_store_alone(seed: int) -> None:
    episode = SwarmEpisode(seed, 15, knobs=Knobs(seed, {}, {}, ALL))
    episode.play()
    assert episode.loss.deltas and episode.loss.recovered > 10


@pytest.mark.parametrize("seed", [2, *long([6])])
def test_nothing_is_lost_while_profiles_change(seed: int) -> None:
    knobs = Knobs(seed, {}, {}, {"diskless": 1, "switches": 0.3})
    episode = SwarmEpisode(seed, 15, knobs=knobs)
    episode.play()
    changes = [event for event in episode.events if " has profile " in event]
    assert sum(event.endswith(": OK") for event in changes) > 3, changes
