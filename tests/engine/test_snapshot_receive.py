"""Receiving snapshots while the group leaves this node: a descriptor is closed once, by its
owner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim.loop import run_simulated
from worlds.fake_disk import FakeDisk

from polynya.engine.snapshots.receive import ARRIVING_MAX, STALE_SECONDS, SnapshotReceiver
from polynya.raft import ChunkArrived, Configuration, Snapshot, SnapshotChunk
from polynya.wal import OsFiles, SnapshotStore

GROUP = 3
BODY = b"state" * 1000
SNAPSHOT = Snapshot(7, 1, Configuration((1, 2)), len(BODY), 99)


class Counting(OsFiles):
    """The real files. They fail on a second `close`, which would close another owner's
    descriptor."""

    def __init__(self) -> None:
        self.open_now: list[int] = []

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.open_now.append(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_now.remove(fd)
        super().close(fd)


class Core:
    """Takes every chunk."""

    def __init__(self) -> None:
        self.on_chunk: Any = None
        self.arriving: Any = None

    def step(self, member: Any, message: SnapshotChunk) -> None:
        self.arriving.keep(member, [ChunkArrived(message.snapshot, message.offset, message.data)])


@pytest.mark.parametrize("taker_first", [True, False])
def test_a_group_that_leaves_while_its_last_chunk_is_written_closes_the_file_once(
    tmp_path: Path, taker_first: bool
) -> None:
    files = Counting()
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work))

    async def story() -> None:
        core = Core()
        arriving = core.arriving = SnapshotReceiver(
            core, SnapshotStore(tmp_path, files=files), spawn
        )  # type: ignore[arg-type]
        raft = SimpleNamespace(transfers=SimpleNamespace(incoming=None, installing=None))
        member: Any = SimpleNamespace(group=SimpleNamespace(number=GROUP), raft=raft)
        arriving.hear(member, SnapshotChunk(1, 2, GROUP, 1, SNAPSHOT, 0, BODY))
        taking = None
        if taker_first:
            taking = asyncio.create_task(arriving.take(GROUP, SNAPSHOT))
            await asyncio.sleep(0)  # it waits for the write
        arriving.forget(GROUP)
        file = await (taking or arriving.take(GROUP, SNAPSHOT))
        await asyncio.gather(*tasks)
        if file is not None:
            assert file.read(0, len(BODY)) == BODY
            file.close()
        arriving.close()

    asyncio.run(story())
    assert files.open_now == [] and os.listdir(tmp_path) == []


def test_what_waits_for_a_lost_chunk_keeps_no_place_when_its_sender_is_gone() -> None:
    """The next leader may have the entries themselves, and send no snapshot: few such positions
    would be left for other groups, and none in the end."""
    disk, tasks = FakeDisk(), list[asyncio.Task[None]]()

    async def story() -> None:
        core = Core()
        store = SnapshotStore(Path("/snapshots"), files=disk)
        arriving = core.arriving = SnapshotReceiver(
            core, store, lambda work: tasks.append(asyncio.ensure_future(work))
        )  # type: ignore[arg-type]
        forgotten: list[int] = []
        for number in range(ARRIVING_MAX + 1):
            raft = SimpleNamespace(
                transfers=SimpleNamespace(incoming=None, installing=None),
                snapshots=SimpleNamespace(
                    forget_incoming=lambda number=number: forgotten.append(number)
                ),
            )
            member: Any = SimpleNamespace(group=SimpleNamespace(number=number), raft=raft)
            arriving.hear(member, SnapshotChunk(1, 2, number, 1, SNAPSHOT, 0, BODY[:1000]))
            raft.transfers.incoming = SNAPSHOT, 1000
            await asyncio.sleep(0.1)
            # the one before it is lost
            arriving.hear(member, SnapshotChunk(1, 2, number, 1, SNAPSHOT, 2000, BODY[2000:3000]))
            await asyncio.sleep(2 * STALE_SECONDS if number == ARRIVING_MAX - 1 else 0.1)
        assert sorted(forgotten) == list(range(ARRIVING_MAX)), (
            "all but the last, which came in their place"
        )
        assert list(arriving._arrivals) == [ARRIVING_MAX]
        arriving.close()
        await asyncio.gather(*tasks)

    run_simulated(story())
