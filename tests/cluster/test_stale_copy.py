"""A core's folder that is a stale copy: the core exits and reports it at each start, and the
peers' reports are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.base.errors import CorruptData
from polynya.cluster.stale_copy import FILE, MARK, StaleCopyGuard, refuse_stale_copy
from polynya.transport import Hello, PeerJournalPositions

ABOUT = Hello(4, 4, "c", 1, 4, 2, 0, 1, "life", journal=77, opened=100, incarnation=1)


class World:
    """Core 1 of a node."""

    def __init__(self, folder: Path, history: int = 1) -> None:
        self.folder = folder / "core-1"
        self.folder.mkdir(exist_ok=True)
        start: Any = SimpleNamespace(
            identity=SimpleNamespace(history=history),
            core=1,
            config=SimpleNamespace(data=str(folder)),
        )
        self.vouched: list[Any] = []
        self.links: Any = SimpleNamespace(
            peer_positions=PeerJournalPositions(), vouch=lambda *said: self.vouched.append(said)
        )
        self.ends: list[BaseException] = []
        self.journal: Any = SimpleNamespace(begun=5, opened=10, settled=20)
        self.older = StaleCopyGuard(start, self.links, self.journal, end=self.ends.append)


def test_it_vouches_for_its_journal(tmp_path: Path) -> None:
    ((number, opened, synced),) = World(tmp_path).vouched
    assert (number, opened, synced()) == (5, 10, 20)


def test_by_the_word_of_a_node_that_remembers_more_it_ends_and_does_not_start_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    refuse_stale_copy(world.folder)
    world.links.on_stale_copy(
        Hello(4, 4, "c", 1, 4, 3, 1, 2, "life", lacks="its journal ends too early")
    )
    (fault,) = world.ends
    assert isinstance(fault, CorruptData) and "is a stale copy" in str(fault)
    assert "node 3 recorded a later position (its journal ends too early)" in str(fault)
    with pytest.raises(CorruptData, match="node 3 recorded a later position"):
        refuse_stale_copy(world.folder)
    (world.folder / MARK).unlink()
    refuse_stale_copy(world.folder)


def test_what_others_said_is_kept_and_is_of_this_history(tmp_path: Path) -> None:
    world = World(tmp_path)
    asyncio.run(world.older.keep())
    assert not (world.folder / FILE).exists(), "nobody has said anything"
    world.links.peer_positions.record_accepted(ABOUT)
    asyncio.run(world.older.keep())
    assert [each.node for each in World(tmp_path).links.peer_positions.saved()] == [2]
    assert World(tmp_path, history=2).links.peer_positions.saved() == []
    (world.folder / FILE).write_text("{")
    assert World(tmp_path).links.peer_positions.saved() == []


def test_a_disk_that_takes_no_file_takes_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.links.peer_positions.record_accepted(ABOUT)
    hidden = world.folder.rename(tmp_path / "hidden")
    for _ in range(2):
        asyncio.run(world.older.keep())
    assert [each.message for each in caplog.records] == [
        "cannot store the journal positions of other nodes; retrying"
    ]
    hidden.rename(world.folder)
    asyncio.run(world.older.keep())
    assert (world.folder / FILE).exists()
