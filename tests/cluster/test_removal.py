"""A node that was removed from its cluster ends, whichever way it hears so, and one that was not
does not."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.cluster.removal import Removal
from polynya.config.core_start import EXIT_REMOVED
from polynya.config.node_identity import REMOVED
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, NodeState


class World:
    """Core `core` of node 3, which ends only in word."""

    def __init__(
        self, folder: Path, *, epoch: int, state: int = NodeState.ACTIVE, core: int = 0
    ) -> None:
        self.folder = folder
        self.maps: Any = SimpleNamespace(now=self.map(epoch, state), on_map=[])
        start: Any = SimpleNamespace(
            identity=SimpleNamespace(node=3),
            core=core,
            supervisor_pid=77,
            config=SimpleNamespace(data=str(folder)),
        )
        self.ends: list[tuple[int, ...]] = []
        self.removal = Removal(
            start,
            self.maps,
            stop=lambda *arguments: self.ends.append(arguments),
            end=lambda code: self.ends.append((code,)),
        )

    @staticmethod
    def map(epoch: int, state: int) -> ClusterMap:
        return ClusterMap(
            epoch,
            3,
            {
                number: NodeRecord(number, "", "", state=state if number == 3 else 0)
                for number in (1, 2, 3)
            },
            {},
        )

    def hears(self, epoch: int, state: int) -> None:
        for hear in self.maps.on_map:
            hear(self.map(epoch, state))

    @property
    def marked(self) -> bool:
        return (self.folder / REMOVED).exists()


def test_by_the_map_it_stops_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, epoch=4)
    world.hears(5, NodeState.LEAVING)
    assert world.ends == [] and not world.marked
    world.hears(6, NodeState.REMOVED)
    assert world.ends == [(77, signal.SIGTERM)] and world.marked


def test_what_was_heard_before_a_kill_still_counts(tmp_path: Path) -> None:
    assert World(tmp_path, epoch=6, state=NodeState.REMOVED).ends == [(77, signal.SIGTERM)]


def test_other_cores_leave_it_to_the_first(tmp_path: Path) -> None:
    assert World(tmp_path, epoch=6, state=NodeState.REMOVED, core=1).ends == []


@pytest.mark.parametrize("core", [0, 1])
def test_by_the_word_of_a_node_that_knows_more_it_ends_at_once(tmp_path: Path, core: int) -> None:
    world = World(tmp_path, epoch=4, core=core)
    world.removal.on_removed(1, 9)
    assert world.ends == [(EXIT_REMOVED,)] and world.marked


@pytest.mark.parametrize("epoch", [3, 4])
def test_the_word_of_a_node_that_knows_no_more_ends_nothing(tmp_path: Path, epoch: int) -> None:
    world = World(tmp_path, epoch=4)
    world.removal.on_removed(1, epoch)
    assert world.ends == [] and not world.marked
