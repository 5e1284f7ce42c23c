"""A tier whose streams have keys, and the plain model of what compaction may leave of them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import google_crc32c
from worlds.cold import CLUSTER, GROUPS, MERGE_SETTINGS, FaultyStore, Tier, no_sleep, opened
from worlds.in_process import HereWorker
from worlds.stream import kafka_batch

from polynya.base.names import group_of
from polynya.cold.compaction.child import Worker
from polynya.cold.compaction.compactor import Compactor, LastPass, Policies
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.cold.settings import MergeSettings
from polynya.cold.steps import Steps
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.machine import Machine
from polynya.stream.parts import HIDDEN, Encoding
from polynya.stream.read_plan import HotPiece, ReadPlan, cut
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream
from polynya.wire.kafka import codecs
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch, header_of
from polynya.wire.kafka.records import decoded_records, placed_batches

NAME = "kafka/t/0"
Pair = tuple[bytes | None, bytes | None]


def with_codec(batch: bytes, codec: int) -> bytes:
    """Compress the records of a batch, as a producer would."""
    header = header_of(batch)
    body = codecs.compressed(codec, batch[HEADER_BYTES:])
    tail = Struct(">hiqqqhii").pack(
        codec,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.records,
    )
    crc = google_crc32c.extend(google_crc32c.value(tail), body)
    return Struct(">qiibI").pack(0, len(body) + 49, 0, 2, crc) + tail + body


class KeyedTier(Tier):
    """A tier with a compactor, and all records that were ever appended, by offset."""

    def __init__(
        self,
        store: FaultyStore | None = None,
        policy: CompactionPolicy = CompactionPolicy(),  # noqa: B008
        settings: MergeSettings = MERGE_SETTINGS,
    ) -> None:
        super().__init__(store)
        self.settings = settings
        self.policies = {NAME: policy}
        self.compactor = self.new_compactor()
        self.records: dict[str, dict[int, Pair]] = {}

    def new_compactor(self, worker: Worker | None = None) -> Compactor:
        async def policies() -> Policies:
            return self.policies

        return Compactor(
            Steps(self.world, self.store, no_sleep),
            self.settings,
            CLUSTER,
            self.merger.in_hand,
            policies=policies,
            worker=worker or HereWorker(),
        )

    def produce(self, *pairs: Pair, name: str = NAME, codec: int = 0) -> None:
        """Append one batch."""
        group = group_of(name, GROUPS)
        if name not in self.records:
            self.records[name] = {}
            self.world.apply(group, Create(name, self.world.now, "", Encoding.KAFKA))
        first = self.stream(name).next_record
        records = [Record(key, value, self.world.now) for key, value in pairs]
        batch = with_codec(build_batch(records), codec)
        made = kafka_batch(len(pairs), batch)
        assert self.world.apply(group, Produce(name, self.world.now, made)).code == Code.OK
        self.records[name].update(enumerate(pairs, first))

    def machine(self, name: str = NAME) -> Machine:
        return self.world.machines()[group_of(name, GROUPS)]

    def stream(self, name: str = NAME) -> Stream:
        return self.machine(name).directory.streams[name]

    async def compact(self, name: str = NAME) -> LastPass | None:
        """Run a pass, due or not."""
        self.compactor.force(name)
        await self.compactor.compact_due()
        return self.compactor.last.get(self.stream(name).uid)

    async def flush(self) -> None:
        await self.flusher.flush_now()

    async def read_pairs(self, name: str = NAME, record: int = 0) -> dict[int, Pair]:
        """Read all records from an offset on, and check that a reader reaches the end."""
        found: dict[int, Pair] = {}
        stream, byte = self.stream(name), 0
        while record < stream.next_record:
            plan = self.machine(name).plan_read(
                stream, record, byte, bytes_max=700, whole_records=True
            )
            assert isinstance(plan, ReadPlan)
            before, (record, byte) = (record, byte), (plan.record, plan.byte)
            for piece in [
                each for planned in plan.pieces for each in await opened(planned, self.reader)
            ]:
                if isinstance(piece, HotPiece):
                    found.update(_pairs(piece))
                    continue
                part = cut(await self.reader.batches(piece.slice), piece.want)
                for each in part.pieces:
                    found.update(_pairs(each))
                if (part.record, part.byte) != piece.want.until:  # the page is full
                    record, byte = part.record, part.byte
                    break
            assert (record, byte) > before or record > before[0], "the reader does not move"
        return found

    def newest(self, name: str = NAME) -> dict[bytes | None, tuple[int, bytes | None]]:
        """Return the last record of each key, as a model."""
        return {key: (at, value) for at, (key, value) in self.records[name].items() if key}

    async def check_keys(self, name: str = NAME, *, gone: Sequence[bytes] = ()) -> dict[int, Pair]:
        """Check that nothing is there that was not written, and that the last value of each key is
        there, but for deleted keys; return what is there."""
        found = await self.read_pairs(name)
        first = self.stream(name).first_record
        assert found.items() <= self.records[name].items()
        for key, (at, value) in self.newest(name).items():
            if at >= first and not (value is None and key in gone):
                assert found.get(at) == (key, value), f"the last value of {key!r} is lost"
        for at, (key, value) in self.records[name].items():
            if key is None and at >= first:
                assert found[at] == (key, value), "a record without a key is lost"
        for key in gone:
            assert all(pair[0] != key for pair in found.values()), f"{key!r} is back"
        return found


def _pairs(piece: Any) -> dict[int, Pair]:
    """Return the records of a piece, as a reader of committed ones gets them."""
    if piece.flags & HIDDEN:
        return {}
    return {
        record.offset: (record.key, record.value)
        for batch, header, first in placed_batches(piece.payload, piece.record)
        for record in decoded_records(batch, first)
    }
