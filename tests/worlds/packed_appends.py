"""A writer of diskless streams as small as can be: each call stores one pack and commits it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence

from google_crc32c import value as crc32c
from msgspec import structs

from polynya.cold import ColdReader
from polynya.objectstore import ObjectStore
from polynya.service.node_service import NodeService
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    PackedAppend,
    PackedSlice,
    Profile,
    SetProfile,
)
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Reply
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder, pack_key
from polynya.wire.slice_building import build_slice
from polynya.wire.slices import built_slice


class PackedAppends:
    """Appends to diskless streams through one service. With a reader, committed data is kept for
    it."""

    def __init__(
        self, service: NodeService, store: ObjectStore, reader: ColdReader | None = None
    ) -> None:
        self._service = service
        self._store = store
        self._reader = reader
        self._sequences: dict[int, int] = {}
        self._random = random.Random(1)

    async def append(
        self,
        name: str,
        *payloads: bytes,
        content_type: str = "text/plain",
        refused: Collection[int] = (),
        close: bool = False,
    ) -> list[Reply]:
        """Store and commit these batches of one record each, in one slice. The group refuses those
        with a number in `refused`."""
        encoding = Encoding.JSON if content_type == "application/json" else Encoding.BYTES
        return await self._commit(
            name,
            encoding,
            [(1, payload) for payload in payloads],
            [
                Append(
                    name,
                    self._service.now_ms(),
                    "wrong/type" if number in refused else content_type,
                    Batch(encoding, 1, b"", crc32c(payload)),
                    close=close and number == len(payloads) - 1,
                )
                for number, payload in enumerate(payloads)
            ],
        )

    async def produce(self, name: str, *batches: tuple[int, bytes]) -> list[Reply]:
        """Store and commit Kafka batches, each with its count of records."""
        now_ms = self._service.now_ms()
        produced = [
            Produce(name, now_ms, Batch(Encoding.KAFKA, records, b"", crc32c(payload)))
            for records, payload in batches
        ]
        return await self._commit(name, Encoding.KAFKA, batches, produced)

    async def send(self, command: Produce) -> Reply:
        """Store and commit one Kafka batch with its flags."""
        batch = command.batch
        bare = structs.replace(command, batch=structs.replace(batch, payload=b""))
        (reply,) = await self._commit(
            command.name, Encoding.KAFKA, [(batch.records, batch.payload)], [bare]
        )
        return reply

    async def turn(self, name: str) -> None:
        """Make a stream without records in memory diskless."""
        change = SetProfile(name, Profile.DISKLESS, self._service.now_ms())
        assert (await self._propose(self._service.group_of(name), change)).code == 0

    async def _commit(
        self,
        name: str,
        encoding: Encoding,
        batches: Sequence[tuple[int, bytes]],
        commands: Sequence[Append | Produce],
    ) -> list[Reply]:
        group, now_ms = self._service.group_of(name), self._service.now_ms()
        raw = [
            HotBatch(
                0,
                0,
                records,
                payload,
                b"",
                crc32c(payload),
                now_ms,
                0,
                encoding,
                0,
                flags=0 if command.batch is None else command.batch.flags,
            )
            for (records, payload), command in zip(batches, commands, strict=True)
        ]
        builder, built = PackBuilder(), build_slice(encoding, -1, -1, raw)
        entry = builder.add(1, group, built)
        random = self._random.randbytes(16)
        key = pack_key("5e" * 16, owner_group=group, now_ms=now_ms, random=random)
        await self._store.put(key, builder.finish(owner_group=group, created_ms=now_ms)[0])
        await self._propose(group, PackWritten(key, [group], now_ms))
        appends = [
            PackedAppend(command, len(batch.payload))
            for command, batch in zip(commands, raw, strict=True)
        ]
        sequence = self._sequences[group] = self._sequences.get(group, 0) + 1
        part = PackedSlice(entry.offset, entry.stored, entry.crc, encoding, appends)
        reply = await self._propose(
            group, CommitSlices(key, group, "aa" * 16, sequence, now_ms, [part], now_ms)
        )
        assert reply.code == 0
        if self._reader is not None:
            self._reader.keep(key, entry.offset, built_slice(built[1]))
        replies: list[Reply] = reply.detail
        return replies

    async def _propose(self, group: int, command: Command) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply | BaseException) -> None:
            if isinstance(reply, BaseException):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self._service.proposals.propose_to(group, command, done)
        return await future
