"""Backups that are taken amid all that goes wrong: each that is whole has all that was acknowledged
before it began, and so has a cluster of another size that begins with it."""

from __future__ import annotations

from collections import Counter

import pytest
from long_tests import long
from sim.restored import Restored
from sim.swarm import SwarmEpisode

SEEDS = (3, 8, 9, 15, 37)  # one and two operators; with an object store and without
FEW_SEEDS = (8, 37)  # the last failed once: a backup was deleted while another looked at it


@pytest.mark.parametrize("seeds", [FEW_SEEDS, *long([(SEEDS,)])], ids=["few", "all"])
def test_backups_amid_faults_are_whole_and_restored(seeds: tuple[int, ...]) -> None:
    counts, sizes = Counter[str](), set[int]()
    for seed in seeds:
        episode = SwarmEpisode(seed)
        assert episode.operators.strikes
        episode.play()
        counts += episode.operators.counts
        sizes |= {
            len(Restored(episode, taken, episode.operators.calm()).world.nodes)
            for taken in episode.operators.taken.values()
        }
    assert counts["taken"] > 2 * len(seeds) and counts["kept objects"] and counts["pruned"]
    assert counts["TimeoutError"], "some were interrupted"
    assert counts["StoreUnavailable"] or seeds == FEW_SEEDS, "for some the position was away"
    assert len(sizes) > 2


def test_nobody_takes_backups_in_most_worlds() -> None:
    striking = [seed for seed in range(100) if SwarmEpisode(seed).operators.strikes]
    assert 15 < len(striking) < 50
