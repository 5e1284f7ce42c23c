"""Another number of cores: everything is there after it, once, also when the change is cut off at
any step of it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from long_tests import long
from worlds.service import json_batch, raw_batch

from polynya.base.errors import ConfigError
from polynya.base.names import group_of
from polynya.config import node_identity as identities
from polynya.config.node_identity import NodeIdentity, journal_id_of, write_json
from polynya.engine.membership import Membership
from polynya.engine.storage import open_storage
from polynya.local.api import Page, ReadQuery
from polynya.raft import EntryKind
from polynya.recovery import folder_switch, reshard
from polynya.recovery.folder_switch import finish
from polynya.recovery.reshard import reshare
from polynya.replica.log import encode_command
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Reply
from polynya.wal import Journal, SnapshotStore

GROUPS, SEGMENT_BYTES = 7, 1 << 15
CLUSTER = "ab" * 16
NAMES = [f"test/{number}" for number in range(24)]


class Killed(BaseException):
    """The process is gone."""


def born(data: Path, cores: int, node: int = 0) -> NodeIdentity:
    identity = NodeIdentity(cluster_id=CLUSTER, node=node, groups=GROUPS, cores=cores, created_ms=1)
    write_json(data / identities.FILE, identity)
    return identity


def identity_in(data: Path) -> NodeIdentity:
    import msgspec

    return msgspec.json.decode((data / identities.FILE).read_bytes(), type=NodeIdentity)


class Cores:
    """All cores of a single node in one process, without the connections between them."""

    def __init__(self, data: Path) -> None:
        self.identity = identity_in(data)
        self.engines = []
        for core in range(self.identity.cores):
            shape = {"core": core, "cores": self.identity.cores, "groups": GROUPS}
            storage = open_storage(
                data / f"core-{core}", cluster_id=CLUSTER, segment_bytes=SEGMENT_BYTES, **shape
            )
            self.log_ms = storage.log_ms
            engine = CoreRuntime(
                storage,
                Shape(history=1, hot_bytes_max=1 << 24, **shape),
                now_ms=lambda: 5,
                transport=None,
                fatal=_raise,
            )
            self.engines.append(engine)

    async def send(self, name: str, command: Command) -> Reply:
        group = group_of(name, GROUPS)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.engines[group % self.identity.cores].local.propose(group, command, future.set_result)
        return await future

    async def append(self, name: str, payload: bytes) -> None:
        assert (await self.send(name, Append(name, 5, "text/plain", raw_batch(payload)))).code < 3

    async def read(self, name: str) -> bytes:
        group = group_of(name, GROUPS)
        page = await self.engines[group % self.identity.cores].local.reads.read(
            group, ReadQuery(name, bytes_max=1 << 22)
        )
        assert isinstance(page, Page)
        return b"".join(bytes(span.payload) for span in page.spans)

    async def stop(self) -> None:
        for engine in self.engines:
            await engine.core.drain()
            engine.close()


def _raise(error: BaseException) -> None:
    raise error


async def live(data: Path, expected: dict[str, bytes], seed: int) -> None:
    """Start the cores, check that all is there, and add more, some of it behind snapshots."""
    chance = random.Random(seed)
    cores = Cores(data)
    try:
        for name in NAMES:
            if name in expected:
                assert await cores.read(name) == expected[name]
            else:
                await cores.send(name, Create(name, 5, "text/plain", Encoding.BYTES))
                expected[name] = b""
        for number in range(60):
            name = chance.choice(NAMES)
            payload = b"%d.%d;" % (seed, number) * chance.choice((1, 40, 300))
            await cores.append(name, payload)
            expected[name] += payload
            if chance.random() < 0.03:
                await chance.choice(cores.engines).snapshotter.run(5, 0)
    finally:
        await cores.stop()


def test_there_and_back_and_on(tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    identity = born(tmp_path, 2)
    for seed, cores in enumerate((2, 3, 1, 7, 4, 2)):
        identity = (
            identity
            if identity.cores == cores
            else reshare(tmp_path, identity, cores, segment_bytes=SEGMENT_BYTES)
        )
        assert identity == identity_in(tmp_path) and identity.cores == cores
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            *(f"core-{core}" for core in range(cores) if seed),
            identities.FILE,
        ]
        asyncio.run(live(tmp_path, expected, seed))


def _counted(monkeypatch: pytest.MonkeyPatch, last: int) -> list[str]:
    """Count every change, and end the process after `last` of them."""
    done: list[str] = []

    def counted(what: Any, name: str) -> Callable[..., Any]:
        real = getattr(what, name)

        def step(*args: Any, **options: Any) -> Any:
            if len(done) >= last:
                raise Killed
            done.append(name)
            return real(*args, **options)

        return step

    positions = [
        (Path, "rename"),
        (Path, "unlink"),
        (folder_switch, "sync_folder"),
        (folder_switch, "write_json"),
        (reshard, "write_json"),
        (Journal, "write"),
    ]
    for what, name in (
        *positions,
        (SnapshotStore, "write"),
        (reshard.shutil, "rmtree"),
        (Path, "mkdir"),
    ):
        monkeypatch.setattr(what, name, counted(what, name))
    return done


@pytest.mark.parametrize(("before", "after"), [(2, 3), *long([(3, 1)])])
def test_a_change_that_is_cut_off_anywhere_has_not_begun_or_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    import shutil

    origin, expected = tmp_path / "origin", dict[str, bytes]()
    origin.mkdir()
    born(origin, before)
    asyncio.run(live(origin, expected, 1))
    numbers = set()
    for last in range(200):
        data = tmp_path / f"cut-{last}"
        shutil.copytree(origin, data)
        with monkeypatch.context() as patch:
            done = _counted(patch, last)
            try:
                reshare(data, identity_in(data), after, segment_bytes=SEGMENT_BYTES)
            except Killed:
                pass
            over = len(done) < last
        if last % 3 == 0:  # the start after it is cut off, too
            with monkeypatch.context() as patch:
                _counted(patch, last // 3 % 5)
                try:
                    finish(data)
                except Killed:
                    pass
        finish(data)
        identity = identity_in(data)
        numbers.add(identity.cores)
        assert sorted(path.name for path in data.iterdir()) == [
            *(f"core-{core}" for core in range(identity.cores)),
            identities.FILE,
        ]
        asyncio.run(live(data, dict(expected), 2))
        shutil.rmtree(data)
        if over:
            break
    else:
        raise AssertionError("it does not end")
    assert numbers == {before, after}


def test_what_takes_long_says_how_far_it_is_and_is_not_done_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, expected, said = born(tmp_path, 2), dict[str, bytes](), list[str]()
    asyncio.run(live(tmp_path, expected, 1))
    monkeypatch.setattr(reshard, "SAID_FIRST_SECONDS", 600.0)
    identity = reshare(tmp_path, identity, 3, segment_bytes=SEGMENT_BYTES, say=said.append)
    assert said == [], "it was quick"
    asyncio.run(live(tmp_path, expected, 2))
    monkeypatch.setattr(reshard, "SAID_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(reshard, "SAID_SECONDS", 0.0)
    reshare(tmp_path, identity, 1, segment_bytes=SEGMENT_BYTES, say=said.append)
    *progress, last = said
    assert last.startswith("the data is resharded to 1 core; it took ")
    parts: dict[str, list[int]] = {}
    for text in progress:
        head, far = text.removeprefix("resharding the data to 1 core: ").split(", ", 1)
        if far != "scanning its journal":
            parts.setdefault(head, []).append(int(far.partition(" %")[0]))
    assert list(parts) == ["core 1 of 3", "core 2 of 3", "core 3 of 3"]
    assert all(far == sorted(far) and (far[0], far[-1]) == (0, 100) for far in parts.values())
    assert any(0 < part < 100 for far in parts.values() for part in far)


def test_where_there_is_no_room_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: dict[str, bytes] = {}
    identity = born(tmp_path, 2)
    asyncio.run(live(tmp_path, expected, 1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    for what, name in ((Journal, "write"), (SnapshotStore, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(what, name, full)
            with pytest.raises(ConfigError, match="no room for a second copy"):
                reshare(tmp_path, identity, 3, segment_bytes=SEGMENT_BYTES)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "core-0",
            "core-1",
            identities.FILE,
        ]
        asyncio.run(live(tmp_path, expected, 2))


def test_what_a_member_of_a_cluster_promised_moves_with_its_log(tmp_path: Path) -> None:
    identity = born(tmp_path, 2, node=1)
    membership = Membership(1, (1, 2, 3))

    def opened(cores: int) -> dict[int, Any]:
        found = {}
        for core in range(cores):
            storage = open_storage(
                tmp_path / f"core-{core}",
                core=core,
                cores=cores,
                groups=GROUPS,
                cluster_id=CLUSTER,
                membership=membership,
            )
            storage.journal.close()
            for group, restored in storage.restored.items():
                entries = [
                    (entry.kind, entry.term, entry.index, entry.payload)
                    for entry in restored.entries
                ]
                found[group] = (restored.hard_state, restored.snapshot, entries)
        return found

    for core in range(2):
        journal = Journal.open(
            tmp_path / f"core-{core}" / "journal", journal_id=journal_id_of(CLUSTER, core)
        )
        for group in range(core, GROUPS, 2):  # the last group has nothing yet
            journal.stage(group, 3, 2, EntryKind.HARD_STATE, b"")
            journal.stage(group, 3, 1, EntryKind.NOOP, b"")
            for index in range(2, 6):
                payload = encode_command(
                    Append(f"test/{group}", 5, "application/json", json_batch(b"%d" % index))
                )
                journal.stage(group, 3, index, EntryKind.COMMAND, payload)
            journal.stage(group, 4, 0, EntryKind.HARD_STATE, b"")
        batch = journal.take()
        assert batch is not None
        journal.write(batch)
        journal.synced(batch)
        journal.close()
    before = opened(2)
    assert before[1][0].term == 4 and len(before[1][2]) == 5 and before[GROUPS][0].amnesiac
    for cores in (3, 1, 2):
        identity = reshare(tmp_path, identity, cores)
        assert opened(cores) == before
