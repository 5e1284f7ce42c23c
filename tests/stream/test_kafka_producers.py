"""Kafka's producers: sequences that wrap, expiry, and the rules against a naive model."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from long_tests import examples
from worlds.stream import kafka_batch, kafka_producer, raw_batch

from polynya.base.limits import PRODUCER_EVICT_IDLE_MS, PRODUCER_IDLE_MS
from polynya.stream.command import level_for
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends import producers
from polynya.stream.features.appends.commands import Append, Bundle, Produce
from polynya.stream.features.appends.producers import cut_receipts
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of
from polynya.stream.snapshots.restore_history import PRODUCER_ID_JUMP, Survey, reborn
from polynya.stream.state.model import KafkaState, OpenTransaction

NAME = "kafka/t/0"
LAST = 2**31 - 1


@pytest.fixture
def machine() -> Machine:
    machine = Machine(1)
    machine.apply(Create(NAME, 0, "", Encoding.KAFKA))
    return machine


def produce(
    machine: Machine,
    sequence: int,
    records: int = 1,
    *,
    id: int = 7,  # noqa: A002
    now_ms: int = 1,
) -> Reply:
    command = Produce(NAME, now_ms, kafka_batch(records), kafka_producer(id, 0, sequence, records))
    assert not fault_of(command)
    return machine.apply(command)


def begins_at(machine: Machine, sequence: int) -> None:
    """Make the next sequence of producer 7 this one."""
    stream = machine.directory.lookup(NAME)
    assert stream is not None
    last = (sequence - 1) % 2**31
    stream.producers = {"1\x007": producers.NEW.pack(0, last, 0, last, last, -1, 0)}


def test_a_sequence_wraps_and_its_receipts_stay(machine: Machine) -> None:
    begins_at(machine, LAST - 2)
    assert produce(machine, LAST - 2, 2).first_record == 0
    assert produce(machine, LAST, 3).first_record == 2, "the last sequence, then 0 and 1"
    assert produce(machine, 2).first_record == 5
    assert [
        produce(machine, *batch).first_record for batch in ((LAST - 2, 2), (LAST, 3), (2, 1))
    ] == [0, 2, 5]
    assert produce(machine, LAST).code == Code.PRODUCER_GAP
    reply = produce(machine, 4)
    assert (reply.code, reply.expected_sequence) == (Code.PRODUCER_GAP, 3)


def test_a_batch_that_begins_at_0_after_the_last_sequence_is_the_next(machine: Machine) -> None:
    begins_at(machine, LAST)
    assert produce(machine, 0).expected_sequence == LAST
    assert produce(machine, LAST).code == Code.OK
    assert produce(machine, 1).expected_sequence == 0
    assert produce(machine, 0).code == Code.OK
    assert produce(machine, LAST).first_record == 0, "a receipt of before the wrap"


def test_an_older_batch_of_before_the_wrap_is_a_repeat(machine: Machine) -> None:
    begins_at(machine, LAST)
    for sequence in (LAST, 0, 1, 2, 3, 4):
        assert produce(machine, sequence).code == Code.OK
    assert produce(machine, LAST).code == Code.DUPLICATE_SEQUENCE
    assert produce(machine, 0).code == Code.DUPLICATE


def test_an_unknown_producer_begins_anywhere_only_when_it_may_be_forgotten(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_PER_STREAM_MAX", 2)
    for id_ in (5, 6):
        assert produce(machine, 0, id=id_).code == Code.OK
    assert produce(machine, 0, id=8).code == Code.PRODUCER_LIMIT
    assert produce(machine, 0, id=8, now_ms=PRODUCER_EVICT_IDLE_MS + 1).code == Code.OK
    later = PRODUCER_EVICT_IDLE_MS + 2
    restored = machine_from(snapshot_of(machine), lambda position, uid: b"k" * 10)
    for each in (machine, restored):
        assert produce(each, 1, id=6, now_ms=later).code == Code.OK, "it is known"
        assert produce(each, 1, id=9, now_ms=2 * later).code == Code.PRODUCER_GAP, "it is new"
        assert produce(each, 1, id=5, now_ms=2 * later).code == Code.OK, "it was forgotten"
        reply = produce(each, 0, id=5, now_ms=2 * later)
        assert reply.code == Code.PRODUCER_GAP, "nothing tells that this was applied"


def test_a_producer_with_an_open_transaction_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop the longest idle producer of those that have no open transaction."""
    monkeypatch.setattr(producers, "PRODUCERS_PER_STREAM_MAX", 3)
    for id_ in (5, 6, 7):
        assert produce(machine, 0, id=id_, now_ms=id_).code == Code.OK
    stream = machine.directory.lookup(NAME)
    assert stream is not None
    stream.kafka = KafkaState(open={5: OpenTransaction(0, 0, 0, 5)})
    now_ms = PRODUCER_EVICT_IDLE_MS + 5
    assert produce(machine, 0, id=8, now_ms=now_ms).code == Code.PRODUCER_LIMIT, "6 is active"
    assert produce(machine, 0, id=8, now_ms=now_ms + 1).code == Code.OK
    assert list(stream.producers or ()) == ["1\x005", "1\x007", "1\x008"]
    assert stream.kafka.forgotten == 6
    stream.kafka.open |= {number: OpenTransaction(0, 0, 0, 5) for number in (7, 8)}
    assert produce(machine, 0, id=9, now_ms=9 * now_ms).code == Code.PRODUCER_LIMIT, "all are open"
    stream.kafka.open = {5: stream.kafka.open[5]}
    assert produce(machine, 0, id=9, now_ms=PRODUCER_IDLE_MS + now_ms + 1).code == Code.OK
    assert list(stream.producers or ()) == ["1\x005", "1\x009"], "idle for a week"
    assert produce(machine, 1, id=5, now_ms=PRODUCER_IDLE_MS + now_ms + 2).code == Code.OK


def test_a_producer_that_is_older_than_the_stream_begins_anywhere() -> None:
    """Continue as a producer that runs while its topic is deleted and created again."""
    machine = Machine(1)
    create = Create(NAME, 0, "", Encoding.KAFKA, producer_id_max=7)
    assert not fault_of(create)
    assert machine.apply(create).code == Code.CREATED
    restored = machine_from(snapshot_of(machine), lambda position, uid: b"k" * 10)
    for each in (machine, restored):
        assert produce(each, 50, id=8).code == Code.PRODUCER_GAP, "it is new"
        assert produce(each, 50, id=7).code == Code.OK
        assert produce(each, 50, id=7).code == Code.DUPLICATE
        assert produce(each, 40, id=7).code == Code.PRODUCER_GAP, "no success is told of it"
        assert produce(each, 51, id=7).code == Code.OK
        assert produce(each, 0, id=8).code == Code.OK
    assert fault_of(Create(NAME, 0, "", Encoding.KAFKA, producer_id_max=-2))


def test_a_http_producer_of_the_same_id_is_another(machine: Machine) -> None:
    assert produce(machine, 0).code == Code.OK
    assert machine.apply(Append(NAME, 1, "", raw_batch(b"x"), Producer("7", 0, 0))).code == Code.OK
    assert produce(machine, 1).code == Code.OK


def test_what_was_lost_is_undone_also_behind_a_wrap(machine: Machine) -> None:
    begins_at(machine, LAST)
    for sequence in (LAST, 0, 1):
        produce(machine, sequence)
    stream = machine.directory.lookup(NAME)
    assert stream is not None
    stream.producers = cut_receipts(stream.producers, 1)
    stream.next_record = 1
    assert produce(machine, 1).expected_sequence == 0
    assert produce(machine, 0).first_record == 1
    stream.producers = cut_receipts(stream.producers, 0)
    assert produce(machine, LAST).code == Code.OK
    assert cut_receipts({"1\x007": producers.NEW.pack(0, 0, 0, 0, 0, 0, 1)}, 0) is None


def test_the_level_goes_by_what_a_command_holds() -> None:
    batch, append = kafka_batch(2), Append("a", 1, "", raw_batch(b"x"))
    command = Produce("a", 1, batch)
    assert [
        level_for(each) for each in (append, Bundle([append]), command, Bundle([append, command]))
    ] == [1, 2, 3, 3]
    assert level_for(Append("a", 1, "", batch)) == 3
    assert level_for(Create("a", 1, "", Encoding.KAFKA)) == 3
    assert level_for(Create("a", 1, "", Encoding.JSON)) == 1


def test_an_http_append_of_a_kafka_batch_is_judged_by_https_rules() -> None:
    machine = Machine(0, 1)
    machine.apply(Create("a", 0, "text/plain", Encoding.BYTES), 1)
    append = Append("a", 1, "text/plain", kafka_batch(2), Producer("p", 0, 0), "b")
    assert machine.apply(append, 2).code == Code.OK
    assert (machine.counters.level, machine.apply(append, 3).code) == (3, Code.DUPLICATE)
    early = msgspec.structs.replace(append, stream_seq="a", producer=None)
    assert machine.apply(early, 4).code == Code.SEQ_REGRESSION
    wrong = msgspec.structs.replace(append, content_type="image/png")
    assert machine.apply(wrong, 5).code == Code.CONTENT_TYPE
    stream = machine.directory.lookup("a")
    assert stream is not None and stream.next_record == 2


def test_a_follower_of_the_tail_is_told_of_each_batch_once(machine: Machine) -> None:
    stream = machine.directory.lookup(NAME)
    assert stream is not None
    produce(machine, 0)
    machine.tails.watched = {stream.uid}
    for _ in range(2):
        produce(machine, 1, 3)
    (effect,) = machine.tails.take_effects()
    assert (effect.begin_record, effect.begin_byte, effect.record, effect.byte) == (1, 10, 4, 40)
    assert effect.batch == kafka_batch(3)


def test_a_standalone_group_that_has_a_kafka_batch_is_of_level_3(machine: Machine) -> None:
    assert machine.counters.level == 1
    produce(machine, 0)
    assert machine.counters.level == 3


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (Append("a", 1, "", Batch(Encoding.KAFKA, 2, b"xx", 0, bytes(8))), "has record lengths"),
        (Produce("a", 1, raw_batch(b"x")), "has a batch of encoding 0; expected 2"),
        (Produce("a", 1, Batch(Encoding.KAFKA, 2, b"xx", 0, bytes(8))), "has record lengths"),
        (Produce("a", 1, Batch(Encoding.KAFKA, 2, b"", 0)), "no payload"),
        (
            Produce("a", 1, kafka_batch(2), Producer("7", 0, 0, 0, 1)),
            "does not match a batch of 2 records",
        ),
        (Produce("a", 1, kafka_batch(1), Producer("7", 0, 0, 0, 0)), "does not match"),
        (Produce("a", 1, kafka_batch(1), Producer("x", 0, 0, 0, 1)), "does not match"),
        (
            Produce("a", 1, kafka_batch(1), Producer("7", 0, LAST + 1, LAST + 1, 1)),
            "does not match",
        ),
    ],
)
def test_what_no_client_can_mean_is_refused_before_the_log(command: Any, fault: str) -> None:
    assert fault in fault_of(command)


def test_a_restore_allots_no_id_that_the_lost_history_may_have_allotted(machine: Machine) -> None:
    image = decode_image(snapshot_of(machine))
    reborn(image, Survey(), now_ms=1)
    assert image.producer_id_counter == PRODUCER_ID_JUMP


class Producers(RuleBasedStateMachine):
    """Two producers against a model that forgets nothing: every batch that was applied, with its
    epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(1)
        self.machine.apply(Create(NAME, 0, "", Encoding.KAFKA))
        # first, records, record
        self.applied: dict[int, list[tuple[int, int, int]]] = {
            1: [],
            2: [],
        }
        self.epochs = {1: 0, 2: 0}
        self.begins = {1: 0, 2: 0}

    def ask(self, id_: int, epoch: int, first: int, records: int) -> Reply:
        command = Produce(
            NAME, 1, kafka_batch(records), kafka_producer(id_, epoch, first % 2**31, records)
        )
        assert not fault_of(command)
        return self.machine.apply(command)

    @precondition(lambda self: not any(self.applied.values()))
    @rule(id_=st.sampled_from((1, 2)), left=st.integers(0, 6))
    def near_the_wrap(self, id_: int, left: int) -> None:
        """Begin as if very much had been applied before."""
        stream = self.machine.directory.lookup(NAME)
        assert stream is not None
        last = LAST - left
        stream.producers = (stream.producers or {}) | {
            f"1\0{id_}": producers.NEW.pack(0, last, 0, last, last, 0, 1)
        }
        self.begins[id_] = last + 1
        self.applied[id_] = [(last, 1, 0)]

    @rule(id_=st.sampled_from((1, 2)), records=st.integers(1, 4))
    def the_next(self, id_: int, records: int) -> None:
        applied = self.applied[id_]
        first = applied[-1][0] + applied[-1][1] if applied else 0
        reply = self.ask(id_, self.epochs[id_], first, records)
        assert reply.code == Code.OK
        applied.append((first, records, reply.first_record))

    @rule(id_=st.sampled_from((1, 2)), back=st.integers(1, 9))
    def a_repeat(self, id_: int, back: int) -> None:
        applied = self.applied[id_]
        if back > len(applied):
            return
        first, records, record = applied[-back]
        reply = self.ask(id_, self.epochs[id_], first, records)
        expected = (Code.DUPLICATE, record) if back <= 5 else (Code.DUPLICATE_SEQUENCE, -1)
        assert (reply.code, reply.first_record) == expected

    @rule(id_=st.sampled_from((1, 2)), by=st.integers(-3, 3), records=st.integers(1, 4))
    def another_range(self, id_: int, by: int, records: int) -> None:
        """No batch is applied that is neither the next nor a repeat."""
        applied = self.applied[id_]
        following = applied[-1][0] + applied[-1][1] if applied else 0
        first = following + by
        if by == 0 or first < 0 or (first, records) in [each[:2] for each in applied]:
            return
        older = len(applied) >= 5 and first + records <= applied[-5][0]
        reply = self.ask(id_, self.epochs[id_], first, records)
        assert reply.code == (Code.DUPLICATE_SEQUENCE if older else Code.PRODUCER_GAP)

    @rule(id_=st.sampled_from((1, 2)), sequence=st.integers(0, 2))
    def a_new_epoch(self, id_: int, sequence: int) -> None:
        if not self.applied[id_]:
            return
        reply = self.ask(id_, self.epochs[id_] + 1, sequence, 1)
        assert reply.code == (Code.PRODUCER_GAP if sequence else Code.OK)
        if not sequence:
            self.epochs[id_] += 1
            self.applied[id_] = [(0, 1, reply.first_record)]

    @rule(id_=st.sampled_from((1, 2)))
    def an_old_epoch(self, id_: int) -> None:
        if self.epochs[id_]:
            assert self.ask(id_, self.epochs[id_] - 1, 0, 1).code == Code.PRODUCER_STALE

    @rule()
    def restored(self) -> None:
        payloads = [
            batch.payload
            for stream in self.machine.directory.hot.values()
            for batch in reversed(stream.hot or ())
        ]
        before = snapshot_of(self.machine)
        self.machine = machine_from(before, lambda position, uid: payloads.pop(0))
        assert snapshot_of(self.machine) == before

    @invariant()
    def each_record_is_there_once(self) -> None:
        stream = self.machine.directory.lookup(NAME)
        assert stream is not None
        assert stream.next_record == sum(batch.records for batch in stream.hot or ())


Producers.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestProducers = Producers.TestCase
