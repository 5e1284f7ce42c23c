"""Appends of one turn and group on a single node: one log entry, a response each, and the same
state after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c
from worlds.stream import kafka_batch, kafka_producer

from polynya.base.errors import CorruptData
from polynya.engine.snapshots.transfer import PayloadReader, payload_at
from polynya.engine.standalone import StandaloneEngine
from polynya.engine.storage import Storage, open_storage
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import (
    BUNDLE_BYTES,
    BUNDLE_COMMANDS_MAX,
    Append,
    Produce,
)
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import snapshot_of
from polynya.wal import JournalEntry
from polynya.wal.segments import Segments

GROUP = 1


def opened(folder: Path) -> Storage:
    return open_storage(folder / "core", core=0, cores=1, groups=4)


def append(name: str, sequence: int, payload: bytes) -> Append:
    batch = Batch(Encoding.BYTES, 1, payload, crc32c(payload))
    return Append(
        f"test/{name}", 5 + sequence, "text/plain", batch, Producer("writer", 0, sequence)
    )


async def turn(core: StandaloneEngine, commands: list[Command]) -> list[Any]:
    """Their answers, in order."""
    answers: list[Any] = []
    for command in commands:
        core.propose(GROUP, command, answers.append)
    assert core.inflight_bytes_of(GROUP) == core.inflight_bytes > 0
    await core.wait_applied()
    assert core.inflight_bytes == 0
    return answers


def test_appends_of_a_turn_are_one_entry_and_answered_one_by_one(tmp_path: Path) -> None:
    async def run() -> None:
        storage = opened(tmp_path)
        core = StandaloneEngine(storage.core_replicas, storage.journal, fatal=lambda error: None)
        for name in "ab":
            await core.call(GROUP, Create(f"test/{name}", 1, "text/plain", Encoding.BYTES))
        applied: list[tuple[str, int]] = []
        core.watched = (0,)
        core.on_applied = lambda group, command, reply: applied.append((command.name, reply.code))  # type: ignore[attr-defined]
        appends: list[Command] = [
            append("a", 0, b"one"),
            append("b", 0, b"two"),
            append("a", 1, b"three"),
            append("a", 1, b"three"),
        ]
        replies = await turn(
            core, [*appends, Delete("test/b", 9), append("b", 1, b"four"), append("a", 2, b"five")]
        )
        codes = [Code.OK, Code.OK, Code.OK, Code.DUPLICATE, Code.OK, Code.NOT_FOUND, Code.OK]
        assert [reply.code for reply in replies] == codes == [code for _, code in applied]
        assert [reply.record for reply in replies] == [1, 1, 2, 2, 1, 0, 3]
        group = storage.core_replicas.groups[GROUP]
        assert group.applied_index == 2 + 3, "four appends, a delete, two appends"
        assert core.counters.entries == 2 + 7
        before = snapshot_of(group.machine)
        core.close()
        storage.journal.close()

        again = opened(tmp_path)
        machine = again.core_replicas.groups[GROUP].machine
        assert snapshot_of(machine) == before and again.log_ms == 9
        batches = machine.directory.streams["test/a"].hot or []
        assert [batch.payload for batch in batches] == [b"one", b"three", b"five"]
        assert [payload_at(again.journal, batch.position, 1) for batch in batches] == [
            b"one",
            b"three",
            b"five",
        ]
        again.journal.close()

    asyncio.run(run())


def test_an_entry_has_so_many_commands_and_bytes_at_most(tmp_path: Path) -> None:
    async def run() -> None:
        storage = opened(tmp_path)
        core = StandaloneEngine(storage.core_replicas, storage.journal, fatal=lambda error: None)
        await core.call(GROUP, Create("test/a", 1, "text/plain", Encoding.BYTES))
        many = await turn(
            core, [append("a", number, b"x") for number in range(BUNDLE_COMMANDS_MAX + 1)]
        )
        assert storage.core_replicas.groups[GROUP].applied_index == 1 + 2
        begin = len(many)
        large = await turn(
            core, [append("a", begin + number, b"x" * (BUNDLE_BYTES // 3)) for number in range(4)]
        )
        assert storage.core_replicas.groups[GROUP].applied_index == 3 + 2
        assert {reply.code for reply in (*many, *large)} == {Code.OK} and large[
            -1
        ].record == begin + 4
        core.close()
        storage.journal.close()

    asyncio.run(run())


def test_kafka_batches_share_an_entry_with_appends_and_are_read_back(tmp_path: Path) -> None:
    async def run() -> None:
        storage = opened(tmp_path)
        core = StandaloneEngine(storage.core_replicas, storage.journal, fatal=lambda error: None)
        await core.call(GROUP, Create("test/a", 1, "text/plain", Encoding.BYTES))
        produced = [
            Produce("test/a", 5, kafka_batch(3, b"k" * 100_000), kafka_producer(7, 0, 3 * at, 3))
            for at in range(3)
        ]
        replies = await turn(core, [append("a", 0, b"one"), *produced, produced[1]])
        assert [(reply.code, reply.first_record) for reply in replies] == [
            (0, 0),
            (0, 1),
            (0, 4),
            (0, 7),
            (Code.DUPLICATE, 4),
        ]
        assert storage.core_replicas.groups[GROUP].applied_index == 1 + 1
        await turn(core, [produced[0], append("a", 1, b"two")])
        before = snapshot_of(storage.core_replicas.groups[GROUP].machine)
        core.close()
        storage.journal.close()

        again = opened(tmp_path)
        machine = again.core_replicas.groups[GROUP].machine
        assert snapshot_of(machine) == before
        batches = machine.directory.streams["test/a"].hot or []
        read = PayloadReader(again.journal)
        assert [read(batch.position, 1) for batch in reversed(batches)] == [
            batch.payload for batch in reversed(batches)
        ]
        with pytest.raises(CorruptData):
            read(batches[0].position + 5, 1)
        again.journal.close()

    asyncio.run(run())


def test_an_entry_is_read_once_for_all_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        storage = opened(tmp_path)
        core = StandaloneEngine(storage.core_replicas, storage.journal, fatal=lambda error: None)
        await core.call(GROUP, Create("test/a", 1, "text/plain", Encoding.BYTES))
        await turn(core, [append("a", number, b"%d" % number) for number in range(5)])
        await turn(core, [append("a", number, b"%d" % number) for number in range(5, 8)])
        batches = storage.core_replicas.groups[GROUP].machine.directory.streams["test/a"].hot or []
        positions: list[int] = []
        sound = Segments.read_entry

        def counted(segments: Segments, position: int, *, within: int = 1) -> JournalEntry:
            positions.append(position)
            return sound(segments, position, within=within)

        monkeypatch.setattr(Segments, "read_entry", counted)
        read = PayloadReader(storage.journal)
        assert [read(batch.position, 1) for batch in batches] == [
            b"%d" % number for number in range(8)
        ]
        assert positions == [batches[0].position, batches[5].position]
        core.close()
        storage.journal.close()

    asyncio.run(run())
