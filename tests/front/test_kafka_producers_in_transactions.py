"""The keys of transactions over a core in memory, in both protocols, with wrong input too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from front.test_kafka_new_groups import Member
from front.test_kafka_transactions import as_a_client_does
from worlds.kafka import KafkaWire, KafkaWorld, fetch_fields, plain_fields, play
from worlds.transactions import data_batch, marker_batch

from polynya.base.errors import Unavailable
from polynya.base.limits import TRANSACTION_TIMEOUT_MS_MAX
from polynya.base.names import APPEND_ALL_ID
from polynya.front.kafka.errors import Error
from polynya.front.kafka.transactions import refusals
from polynya.local.api import StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.service.transactions import coordinator
from polynya.stream.features.consumer_groups.calls import CommitInTransaction, GroupError, Outcomes
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.transactions.commands import TxnHold

OLD, NEW = 1, 2  # protocols
Story = Callable[[KafkaWorld], Awaitable[None]]


async def ask(wire: KafkaWire, name: str, version: int, **fields: Any) -> Any:
    return await wire.ask(name, version, **plain_fields(name, version, fields))


class TransactionalProducer:
    """A producer with a transactional id, as clients of a protocol speak."""

    def __init__(self, wire: KafkaWire, protocol: int, id_: str = "x") -> None:
        self.wire, self.protocol, self.id = wire, protocol, id_
        self.pair = (-1, -1)
        self.sequences: dict[int, int] = {}

    async def init(self, *, pair: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> int:
        answer = await ask(
            self.wire, "InitProducerId", 4, transactional_id=self.id,
            transaction_timeout=timeout_ms, producer_id=pair[0], producer_epoch=pair[1],
        )  # fmt: skip
        if not answer.error_code.value:
            self.pair, self.sequences = (answer.producer_id, answer.producer_epoch), {}
        return int(answer.error_code.value)

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.id,
            "producer_id": self.pair[0],
            "producer_epoch": self.pair[1],
        }

    async def add(self, *numbers: int, topic: str = "t", version: int = 0) -> list[int]:
        who = {f"v3_and_below_{name}": value for name, value in self._who.items()}
        topics = [{"name": topic, "partitions": numbers}]
        answer = await ask(
            self.wire, "AddPartitionsToTxn", version, v3_and_below_topics=topics, **who
        )
        (found,) = answer.results_by_topic_v3_and_below
        return [each.partition_error_code.value for each in found.results_by_partition]

    def request(
        self,
        number: int,
        *values: bytes,
        sequence: int | None = None,
        id_: str | None = "x",
        records: bytes = b"",
    ) -> dict[str, Any]:
        """Return the fields of a Produce request with a batch of the transaction."""
        first = self.sequences.get(number, 0) if sequence is None else sequence
        made = records or data_batch(self.pair[0], first, *values, epoch=self.pair[1])
        parts = [{"index": number, "records": made}]
        fields = {
            "transactional_id": id_ and self.id,
            "acks": -1,
            "timeout": 5000,
            "topic_data": [{"name": "t", "partition_data": parts}],
        }
        return plain_fields("Produce", self.version, fields)

    @property
    def version(self) -> int:
        return 12 if self.protocol == NEW else 9

    async def send(self, number: int, *values: bytes, **more: Any) -> int:
        """Write a batch of the transaction."""
        self.wire.send("Produce", self.version, **self.request(number, *values, **more))
        error = await self.answer()
        if not error:
            self.sequences[number] = self.sequences.get(number, 0) + len(values)
        return error

    async def answer(self) -> int:
        """Return the error of the next Produce that is answered."""
        _, message = await self.wire.answer("Produce", self.version)
        return int(message.responses[0].partition_responses[0].error_code.value)

    async def write(self, number: int, *values: bytes) -> None:
        """Write, and add the partition before where the protocol wants that."""
        if self.protocol == OLD:
            assert await self.add(number) == [0]
        assert await self.send(number, *values) == 0

    async def end(self, *, commit: bool) -> int:
        version = 5 if self.protocol == NEW else 1
        answer = await ask(self.wire, "EndTxn", version, committed=commit, **self._who)
        if self.protocol == NEW and not answer.error_code.value:
            pair = (answer.producer_id, answer.producer_epoch)
            if pair != self.pair:
                self.pair, self.sequences = pair, {}
        return int(answer.error_code.value)

    async def commit_offset(self, group: str, offset: int, **more: Any) -> int:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": group,
            "topics": [{"name": "t", "partitions": [part]}],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
        }
        version = 5 if self.protocol == NEW else 3
        if self.protocol == OLD:
            answer = await ask(self.wire, "AddOffsetsToTxn", 0, group_id=group, **self._who)
            if answer.error_code.value:
                return int(answer.error_code.value)
        answer = await ask(self.wire, "TxnOffsetCommit", version, **fields | self._who | more)
        return int(answer.topics[0].partitions[0].error_code.value)


async def values(wire: KafkaWire, isolation: int, number: int = 0) -> list[bytes]:
    """Return the values that a consumer reads: of committed records it drops the aborted ones."""
    fields = fetch_fields("t", *[0] * (number + 1), isolation_level=isolation)
    part = (await wire.ask("Fetch", 11, **fields)).responses[0].partitions[number]
    listed = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    return as_a_client_does(part.records or b"", listed)


def with_protocols(*protocols: int) -> Any:
    return pytest.mark.parametrize("protocol", protocols or (OLD, NEW))


@with_protocols()
def test_a_transaction_is_seen_when_it_is_committed(protocol: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        one = TransactionalProducer(await world.wire(), protocol)
        assert await one.init() == 0
        await one.write(0, b"a", b"b")
        await one.write(1, b"c")
        await one.write(0, b"d")
        reader = await world.wire()
        assert await values(reader, 1) == []
        assert await values(reader, 0) == [b"a", b"b", b"d"]
        epoch = one.pair[1]
        assert await one.end(commit=True) == 0
        assert one.pair[1] - epoch == (protocol == NEW)
        await one.write(0, b"e")  # waits for the markers of the transaction before
        assert await values(reader, 1) == [b"a", b"b", b"d"]
        assert await values(reader, 1, 1) == [b"c"]
        assert await one.end(commit=False) == 0
        await one.write(1, b"f")
        assert await one.end(commit=True) == 0
        other = TransactionalProducer(await world.wire(), protocol)
        assert await other.init() == 0
        assert await values(reader, 1) == [b"a", b"b", b"d"]
        assert await values(reader, 1, 1) == [b"c", b"f"]

    play(story)


@with_protocols()
def test_a_new_instance_fences_the_former_one(protocol: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        one = TransactionalProducer(await world.wire(), protocol)
        assert await one.init() == 0
        await one.write(0, b"lost")
        two = TransactionalProducer(await world.wire(), protocol)
        assert await two.init() == 0
        assert two.pair[0] == one.pair[0] and two.pair[1] > one.pair[1]
        fenced = Error.PRODUCER_FENCED if protocol == NEW else Error.INVALID_PRODUCER_EPOCH
        assert await one.end(commit=True) == fenced
        assert await one.send(0, b"late") == Error.INVALID_PRODUCER_EPOCH
        assert await one.send(1, b"late") == Error.INVALID_PRODUCER_EPOCH
        assert await one.commit_offset("g", 5) == Error.INVALID_PRODUCER_EPOCH
        assert await one.init(pair=one.pair) == Error.PRODUCER_FENCED
        await two.write(0, b"kept")
        assert await two.end(commit=True) == 0
        await two.init()
        assert await values(two.wire, 1) == [b"kept"]

    play(story)


@with_protocols()
def test_offsets_are_committed_with_the_records(protocol: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), protocol)
        reader = await world.wire()

        async def committed() -> tuple[int, int]:
            topics = [{"name": "t", "partition_indexes": [0]}]
            answer = await ask(
                reader, "OffsetFetch", 7, group_id="g", topics=topics, require_stable=True
            )
            (part,) = answer.topics[0].partitions
            return part.committed_offset, part.error_code.value

        assert await one.init() == 0
        await one.write(0, b"a")
        assert await one.commit_offset("g", 5) == 0
        assert await committed() == (-1, Error.UNSTABLE_OFFSET_COMMIT)
        assert await one.end(commit=True) == 0
        assert await one.commit_offset("g", 6) == 0, "after the markers of the first one"
        assert await one.end(commit=False) == 0
        await one.init()
        assert await committed() == (5, 0)
        assert await one.commit_offset("g", 6, member_id="m", generation_id=3) == 25
        assert await one.commit_offset("", 6) == Error.INVALID_GROUP_ID

    play(story)


@with_protocols()
def test_a_member_of_the_consumer_protocol_commits_with_its_epoch(protocol: int) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        member = Member(await world.wire(), "m", "t")
        await member.beat()
        one = TransactionalProducer(await world.wire(), protocol)
        assert await one.init() == 0
        stale = {"member_id": "m", "generation_id": member.epoch + 1}
        assert await one.commit_offset("g", 5, **stale) == GroupError.ILLEGAL_GENERATION
        other = {"member_id": "x", "generation_id": member.epoch}
        assert await one.commit_offset("g", 5, **other) == GroupError.UNKNOWN_MEMBER_ID
        own = {"member_id": "m", "generation_id": member.epoch}
        assert await one.commit_offset("g", 5, **own) == 0
        assert await one.end(commit=True) == 0
        assert await one.init() == 0
        assert await member.fetched(member.epoch) == (0, [5])

    play(story)


def test_offsets_of_a_transaction_whose_end_was_lost_are_asked_for_at_once() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), OLD)
        assert await one.init() == 0
        topic = world.front.context.topics.known("t")
        assert topic is not None
        entry = OffsetEntry(topic.id, 0, 3, -1, "")
        lost = CommitInTransaction("g", *one.pair, 1, -1, "", None, [entry])
        groups = world.core.engine.group_coordinator
        assert await groups.call(lost) == Outcomes([0])
        await one.write(0, b"a")
        assert await one.end(commit=True) == 0
        assert await one.commit_offset("g", 5) == Error.COORDINATOR_LOADING
        await world.core.engine.transaction_jobs.run_once()
        member = Member(one.wire, "")
        assert await member.fetched(-1) == (0, [3]), "as its coordinator has decided"
        assert await one.commit_offset("g", 5) == 0

    play(story)


def test_the_error_of_a_wrong_request_is_kafkas_and_changes_nothing() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        one = TransactionalProducer(wire, OLD)
        over = TRANSACTION_TIMEOUT_MS_MAX + 1
        assert await one.init(timeout_ms=over) == Error.INVALID_TRANSACTION_TIMEOUT
        assert await one.init(timeout_ms=0) == Error.INVALID_TRANSACTION_TIMEOUT
        assert await one.init(pair=(5, -1)) == Error.INVALID_REQUEST
        assert await TransactionalProducer(wire, OLD, "").init() == Error.INVALID_REQUEST
        assert await TransactionalProducer(wire, OLD, "x" * 1025).init() == Error.INVALID_REQUEST
        one.pair = (77, 0)
        mapping = Error.INVALID_PRODUCER_ID_MAPPING
        assert await one.add(0) == [mapping]
        assert await one.end(commit=True) == mapping
        assert await one.send(0, b"a") == mapping
        assert await one.commit_offset("g", 1) == mapping
        assert await one.init() == 0
        assert await one.end(commit=True) == Error.INVALID_TXN_STATE
        assert await one.end(commit=False) == Error.INVALID_TXN_STATE
        assert await one.send(0, b"a") == Error.INVALID_TXN_STATE, "not added"
        assert await one.send(0, b"a", id_=None) == Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await one.add(0, 9) == [
            Error.OPERATION_NOT_ATTEMPTED, Error.UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        assert await one.add(0, topic="none") == [Error.UNKNOWN_TOPIC_OR_PARTITION]
        assert await one.add(0) == [0]
        assert await one.send(0, b"a", sequence=7) == Error.NOT_ENOUGH_REPLICAS, "a gap"
        epoch = one.pair[1]
        one.pair = (one.pair[0], epoch + 1)
        assert await one.add(0, version=1) == [Error.INVALID_PRODUCER_EPOCH]
        assert await one.add(0, version=3) == [Error.PRODUCER_FENCED]
        one.pair = (one.pair[0], epoch)
        assert await one.end(commit=True) == 0
        assert await values(wire, 0) == []

    play(story)


def test_a_commit_that_overtakes_its_batches_is_repeated_behind_them() -> None:
    """Java's client may send EndTxn first. It repeats it after CONCURRENT_TRANSACTIONS, and ends
    after INVALID_TXN_STATE, which is left for a producer that has written nothing."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), NEW)
        assert await one.init() == 0
        for value in (b"a", b"b"):
            assert await one.end(commit=True) == Error.CONCURRENT_TRANSACTIONS
            await one.write(0, value)
            assert await one.end(commit=True) == 0
        assert await one.end(commit=True) == Error.CONCURRENT_TRANSACTIONS
        assert await one.end(commit=True) == Error.INVALID_TXN_STATE
        assert await one.end(commit=True) == Error.INVALID_TXN_STATE
        assert await one.init() == 0
        assert await values(one.wire, 1) == [b"a", b"b"]

    play(story)


def test_a_client_cannot_write_markers_or_add_too_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "MARKED_MAX", 2)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 3)
        one = TransactionalProducer(await world.wire(), OLD)
        assert await one.init() == 0
        assert await one.add(0, 1, 2) == [Error.POLICY_VIOLATION] * 3
        assert await one.add(0) == [0]
        marker = marker_batch(one.pair[0], commit=True)
        one.wire.send("Produce", 9, **one.request(0, records=marker))
        assert await one.answer() == Error.INVALID_RECORD
        assert await one.send(0, b"a") == 0
        assert await one.end(commit=True) == 0

    play(story)


def test_a_request_waits_for_the_end_of_the_former_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answer CONCURRENT_TRANSACTIONS only when the markers take long."""
    monkeypatch.setattr(refusals, "WAIT_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        sender = world.core.engine.outbox_sender
        monkeypatch.setattr(sender, "pump", lambda: None)
        world.core.engine.after_turn.clear()
        assert await one.end(commit=True) == 0
        assert await one.add(0) == [Error.CONCURRENT_TRANSACTIONS]
        assert await one.send(0, b"b") == Error.NOT_ENOUGH_REPLICAS

    play(story)


def test_a_stale_number_is_asked_for_again_and_the_order_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A front that did not see the end of a transaction has the number of the former one."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), OLD)
        assert await one.init() == 0
        await one.write(0, b"a")
        numbers = world.front.context.numbers
        (former,) = numbers._known.items()
        assert await one.end(commit=True) == 0
        assert await one.add(0) == [0]
        monkeypatch.setattr(StreamHandle, "ended_number", lambda *_: 0)
        numbers._known = dict([former])
        for number in range(1, 4):
            one.wire.send("Produce", 9, **one.request(0, b"%d" % number, sequence=number))
        assert [await one.answer() for _ in range(3)] == [0, 0, 0]
        assert await one.end(commit=True) == 0
        await one.init()
        assert await values(one.wire, 1) == [b"a", b"1", b"2", b"3"]

    play(story)


@pytest.mark.parametrize("protocol", [OLD, NEW])
def test_a_stream_without_a_leader_is_a_reason_to_repeat(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: StreamHandle) -> StreamInfo:
        raise Unavailable("no leader is reachable")

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), protocol)
        assert await one.init() == 0
        with monkeypatch.context() as away:
            away.setattr(StreamHandle, "info_nowait", lambda _: None)
            away.setattr(StreamHandle, "info", unknown)
            if protocol == OLD:
                assert await one.add(0) == [Error.COORDINATOR_NOT_AVAILABLE]
            assert await one.send(0, b"a") == Error.NOT_ENOUGH_REPLICAS
        await one.write(0, b"a")
        assert await one.end(commit=True) == 0

    play(story)


def test_the_ids_of_the_nodes_are_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        one = TransactionalProducer(await world.wire(), NEW, f"{APPEND_ALL_ID}1.0.0")
        assert await one.init() == Error.INVALID_REQUEST
        one.pair = (5 << 47, 0)
        assert await one.end(commit=True) == Error.INVALID_REQUEST

    play(story)


@pytest.mark.parametrize("protocol", [OLD, NEW])
def test_a_commit_waits_while_a_backup_holds_it(protocol: int, monkeypatch: Any) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        producer = TransactionalProducer(await world.wire(), protocol)
        assert await producer.init() == 0
        await producer.write(0, b"a")
        service = world.core.service
        group, now_ms = service.group_of("transaction/x"), service.now_ms()
        await service.call(group, TxnHold("b/1", now_ms + 9000, now_ms))
        ending = asyncio.ensure_future(producer.end(commit=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not ending.done()
        await service.call(group, TxnHold("b/1", 0, service.now_ms()))
        assert await ending == 0
        now_ms = service.now_ms()
        await service.call(group, TxnHold("b/2", now_ms + 9000, now_ms))
        await producer.write(0, b"b")
        assert await producer.end(commit=False) == 0, "an abort goes on"
        await producer.write(0, b"c")
        monkeypatch.setattr(refusals, "HELD_WAIT_SECONDS", 0.0)
        assert await producer.end(commit=True) == Error.CONCURRENT_TRANSACTIONS

    play(story)
