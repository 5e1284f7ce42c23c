"""A stream as a participant of transactions: which batches it accepts, and what markers do."""

from __future__ import annotations

from typing import Any

import pytest
from worlds.stream import World, kafka_batch, kafka_producer
from worlds.transactions import marker_batch

from polynya.base.limits import ENDED_MS, GROUP_ID_BYTES_MAX, OPEN_TRANSACTIONS_MAX
from polynya.base.names import group_of
from polynya.stream.command import Command, level_for, named_by
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Bundle, Produce, TxnProduce
from polynya.stream.features.consumer_groups.commands import OffsetEntry, TxnOffsets
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.markers.commands import TxnMarkers, TxnSettle
from polynya.stream.features.markers.control_batch import control_batch, decided_ms_of
from polynya.stream.features.pages.commands import Evict
from polynya.stream.features.pages.eviction import mark_of, needed_by
from polynya.stream.machine import Machine
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.aborted import ROW
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream
from polynya.stream.state.tails import stable_of

NAME, OTHER = "kafka/t/0", "kafka/t/1"
GROUP = group_of(NAME, 1)
DECIDED = 5000


class Participant:
    """A stream and its clients. Producers have ids from 7 on, and epoch 0."""

    def __init__(self) -> None:
        self.world = World(1)
        self.now_ms = 1
        self.create(NAME)

    def create(self, name: str) -> None:
        self.apply(Create(name, self.now_ms, "", Encoding.KAFKA))

    def apply(self, command: Command) -> Reply:
        return self.world.apply(GROUP, command)

    @property
    def machine(self) -> Machine:
        return self.world.machines[GROUP]

    @property
    def stream(self) -> Stream:
        return self.machine.directory.streams[NAME]

    @property
    def kafka(self) -> KafkaState:
        assert self.stream.kafka is not None
        return self.stream.kafka

    def produce(
        self,
        number: int,
        sequence: int = 0,
        *,
        id_: int = 7,
        epoch: int = 0,
        uid: int = 0,
        **more: Any,
    ) -> Reply:
        """Write a batch of one record; number 0: of no transaction."""
        batch = kafka_batch(1)
        producer = kafka_producer(id_, epoch, sequence, 1)
        if not number:
            return self.apply(Produce(NAME, self.now_ms, batch, producer, uid))
        batch = type(batch)(
            **{f: getattr(batch, f) for f in batch.__struct_fields__ if f != "flags"}, flags=1
        )
        return self.apply(TxnProduce(NAME, self.now_ms, batch, producer, uid, number, **more))

    def markers(
        self, number: int, *, commit: bool = True, id_: int = 7, epoch: int = 0, **more: Any
    ) -> TxnMarkers:
        batch = control_batch(id_, epoch, commit=commit, decided_ms=DECIDED)
        uids = more.pop("uids", None) or [(self.stream.uid, NAME)]
        groups = more.pop("groups", [])
        return TxnMarkers(id_, epoch, number, commit, batch, uids, groups, self.now_ms)

    def end(self, number: int, **more: Any) -> Reply:
        return self.apply(self.markers(number, **more))

    @property
    def rows(self) -> list[tuple[int, ...]]:
        return [*ROW.iter_unpack(self.kafka.aborted)]

    @property
    def flags(self) -> list[int]:
        return [batch.flags for batch in self.stream.hot or []]


def test_the_bytes_of_a_marker_are_golden() -> None:
    """Markers are equal in all partitions, whenever they arrive."""
    made = control_batch(7, 3, commit=True, decided_ms=DECIDED)
    assert made.hex() == (
        "000000000000000000000042000000000245c07278003000000000000000000000138800000000000013"
        "8800000000000000070003ffffffff000000012000000008000000010c00000000000000"
    )
    assert len(made) == 78 and decided_ms_of(made) == DECIDED
    for commit in (False, True):
        assert control_batch(9, 0, commit=commit, decided_ms=5000) == marker_batch(9, commit=commit)


def test_a_commit_moves_the_stable_end_behind_its_marker() -> None:
    here = Participant()
    assert here.produce(1).code == Code.OK
    assert here.produce(1, 1).code == Code.OK
    assert here.kafka.open == {7: OpenTransaction(0, 0, 0, 1, 1)}
    assert stable_of(here.stream) == (0, 0)
    assert here.end(1).code == Code.OK
    assert stable_of(here.stream) == (3, 98)
    assert here.flags == [TRANSACTIONAL, TRANSACTIONAL, TRANSACTIONAL | CONTROL]
    assert (here.kafka.open, here.rows) == ({}, [])
    assert here.kafka.ended == {7: (1, DECIDED, 1)}
    assert here.stream.hot is not None
    marker = here.stream.hot[2]
    assert marker.payload == control_batch(7, 0, commit=True, decided_ms=DECIDED)
    assert (marker.record_time_ms_max, marker.time_ms) == (DECIDED, 1)
    here.world.restart(GROUP)
    assert here.kafka.ended == {7: (1, DECIDED, 1)}


def test_an_abort_marks_the_batches_and_leaves_a_row() -> None:
    here = Participant()
    here.produce(1)
    here.produce(0, id_=8)
    here.end(1, commit=False)
    assert here.flags == [TRANSACTIONAL | ABORTED, 0, TRANSACTIONAL | CONTROL]
    assert here.rows == [(7, 0, 2, 3)]


@pytest.mark.parametrize("commit", [False, True])
def test_a_repeated_or_late_marker_does_nothing(commit: bool) -> None:
    here = Participant()
    here.produce(2)
    here.end(2)
    before = here.stream.next_record
    for number in (1, 2):
        assert here.end(number, commit=commit).code == Code.OK
    assert here.stream.next_record == before
    here.produce(3, 1)
    assert here.end(2, commit=commit).code == Code.OK
    assert here.kafka.open, "a late marker does not end the next transaction"


def test_without_data_only_the_number_is_kept() -> None:
    here = Participant()
    assert here.end(4).code == Code.OK
    assert (here.stream.next_record, here.stream.hot) == (0, None)
    assert here.kafka.ended == {7: (4, DECIDED, 1)}
    assert here.produce(4).code == Code.TXN_ENDED, "it came too late"
    assert here.produce(3).code == Code.TXN_ENDED
    assert here.produce(5).code == Code.OK


def test_batches_are_judged_in_the_order_of_the_design() -> None:
    here = Participant()
    here.produce(3, epoch=2)
    uid = here.stream.uid
    assert here.produce(3, 1, epoch=1, uid=uid + 1).code == Code.INCARNATION
    assert here.produce(2, 5, epoch=1).code == Code.PRODUCER_STALE
    assert here.produce(9, 0, epoch=2).code == Code.DUPLICATE, "an exact repeat"
    other = here.produce(4, 5, epoch=2)
    assert (other.code, other.detail) == (Code.NOT_YET, 3), "before the sequence"
    plain = here.produce(0, 1, epoch=2)
    assert (plain.code, plain.detail) == (Code.TXN_STATE, 3)
    assert here.produce(3, 5, epoch=2).code == Code.PRODUCER_GAP
    here.end(3, epoch=2)
    assert here.produce(3, 0, epoch=2).code == Code.DUPLICATE, "also after its end"
    assert here.produce(3, 5, epoch=2).code == Code.TXN_ENDED, "before the sequence"
    assert here.produce(0, 1, epoch=2).code == Code.OK, "without a transaction, as before"


def test_a_marker_with_a_higher_epoch_lets_the_producer_begin_again() -> None:
    here = Participant()
    here.produce(1)
    here.end(1, epoch=1)
    assert here.produce(2, 1).code == Code.PRODUCER_STALE
    assert here.produce(2, 1, epoch=1).code == Code.PRODUCER_GAP
    assert here.produce(2, 0, epoch=1).code == Code.OK
    here.end(2, epoch=1)
    assert here.produce(3, 1, epoch=1).code == Code.OK, "the same epoch leaves it as it was"


def test_an_older_transaction_holds_the_stable_end() -> None:
    here = Participant()
    here.produce(1)
    here.produce(1, id_=8)
    here.end(1, id_=8)
    assert stable_of(here.stream) == (0, 0)
    here.end(1, commit=False)
    assert stable_of(here.stream)[0] == 4
    assert here.rows == [(7, 0, 3, 4)]


def test_readers_of_both_ends_are_told_of_a_marker() -> None:
    here = Participant()
    here.produce(1)
    machine = here.machine
    machine.tails.watched = frozenset({here.stream.uid})
    machine.apply(here.markers(1), 1 << 40)
    events = [
        (each.begin_record, each.record, each.unstable) for each in machine.tails.take_effects()
    ]
    assert events == [(1, 2, True), (0, 2, False)]


def test_the_open_transactions_are_bounded_and_shared() -> None:
    here = Participant()
    here.produce(1, owner=5)
    half = OPEN_TRANSACTIONS_MAX // 2
    opened = OpenTransaction(0, 0, 0, 1, 1, 5)
    here.kafka.open |= {100 + number: opened for number in range(half - 1)}
    assert here.produce(1, id_=8, owner=5).code == Code.TOO_MANY
    assert here.produce(1, id_=8, owner=6).code == Code.OK
    assert here.produce(1, id_=9).code == Code.OK
    assert here.produce(1, 1, owner=5).code == Code.OK, "what is open goes on"
    here.kafka.open |= {10_000 + number: opened for number in range(half)}
    assert here.produce(1, id_=10, owner=9).code == Code.TOO_MANY


def test_old_numbers_are_dropped_unless_the_producer_is_known() -> None:
    here = Participant()
    here.produce(1)
    here.end(1)
    for id_ in range(8, 12):
        here.end(1, id_=id_)
    here.now_ms = ENDED_MS + 2
    for id_ in (20, 21, 22):
        here.end(1, id_=id_)
    assert [*here.kafka.ended] == [20, 7, 21, 22]


def test_an_evicted_stream_is_brought_back_first() -> None:
    here = Participant()
    here.create(OTHER)
    here.produce(1)
    uid = here.machine.directory.streams[OTHER].uid
    here.world.evict(GROUP, [OTHER])
    markers = here.markers(1, uids=[(here.stream.uid, NAME), (uid, OTHER)])
    assert [*named_by(markers)] == [NAME, OTHER]
    assert [*needed_by(here.machine, markers)] == [OTHER]
    reply = here.apply(markers)
    assert (reply.code, reply.detail) == (Code.EVICTED, [uid])
    assert not here.kafka.open, "it has ended in the others"
    here.world.bring(GROUP, [OTHER])
    reply = here.apply(markers)
    assert (reply.code, reply.detail) == (Code.OK, [])
    kafka = here.machine.directory.streams[OTHER].kafka
    assert kafka is not None and kafka.ended == {7: (1, DECIDED, 1)}


def test_another_stream_of_an_evicted_name_has_nothing_to_end() -> None:
    here = Participant()
    here.world.evict(GROUP, [NAME])
    markers = TxnMarkers(
        7, 0, 1, True, control_batch(7, 0, commit=True, decided_ms=1), [(99, NAME)], [], 1
    )
    assert [*needed_by(here.machine, markers)] == []
    assert here.apply(markers) == Reply(Code.OK, detail=[])


def test_an_eviction_under_way_does_not_lose_the_number() -> None:
    here = Participant()
    mark = mark_of(here.stream)
    uid = here.stream.uid
    here.end(1)
    here.world.states["block", 0] = b""
    assert here.apply(Evict("block", 1, [(uid, mark, 0, 0, 0)])).detail == []
    assert here.world.evict(GROUP, [NAME]) == [NAME]
    here.world.bring(GROUP, [NAME])
    assert here.produce(1).code == Code.TXN_ENDED


def test_a_stream_with_an_open_transaction_is_not_evicted() -> None:
    here = Participant()
    here.produce(1)
    assert here.world.evict(GROUP, [NAME]) == []


def test_a_deleted_stream_has_nothing_to_end() -> None:
    here = Participant()
    uid = here.stream.uid
    here.produce(0, id_=9)
    here.apply(PinSource(NAME, "ab", "kafka/f/0", 1, 1, 10))
    here.produce(1)
    markers = here.markers(1, uids=[(uid, NAME)])
    here.apply(Delete(NAME, 2))
    assert here.stream.deleted
    assert here.kafka.open == {}, "what forks inherit is decided"
    assert here.apply(markers).code == Code.OK
    assert here.stream.next_record == 1
    here.world.machines[GROUP].directory.streams.clear()


def test_a_settled_transaction_ends_as_its_coordinator_said() -> None:
    here = Participant()
    here.produce(1)
    settle = TxnSettle(here.stream.uid, "", 7, 0, 1, False, DECIDED, 3)
    assert here.apply(settle) == Reply(Code.OK)
    assert here.rows == [(7, 0, 1, 2)]
    assert here.kafka.ended == {7: (1, DECIDED, 3)}
    assert here.stream.hot is not None
    assert here.stream.hot[1].payload == here.markers(1, commit=False).batch
    assert here.end(1).code == Code.OK
    assert here.rows == [(7, 0, 1, 2)], "the coordinator's own marker comes too late"
    assert here.produce(2, 1).code == Code.OK, "its producer is not fenced"
    assert here.apply(TxnSettle(99, "", 7, 0, 1, False, DECIDED, 3)) == Reply(Code.OK)


@pytest.mark.parametrize("commit", [True, False])
def test_consumer_groups_end_the_transaction_too(commit: bool) -> None:
    here = Participant()
    entry = OffsetEntry(bytes(16), 0, 5, -1, "")
    groups = here.machine.consumer_groups
    for id_ in ("g", "h"):
        command = TxnOffsets(id_, 1, 7, 0, 4, -1, "", [entry])
        assert here.machine.apply(command).code == Code.OK
    here.machine.apply(here.markers(4, groups=["g"], commit=commit))
    here.machine.apply(TxnSettle(0, "h", 7, 0, 4, commit, DECIDED, 3))
    for id_ in ("g", "h"):
        group = groups.get(id_)
        assert group is not None and not group.pending
        assert [each.offset for each, _ in group.entries()] == [5] * commit


def test_batches_of_one_turn_share_an_entry() -> None:
    here = Participant()
    batch = kafka_batch(1)
    command = TxnProduce(
        NAME,
        1,
        type(batch)(2, 1, batch.payload, batch.crc, flags=1),
        kafka_producer(7, 0, 0, 1),
        txn=1,
    )
    bundle = Bundle([Produce(NAME, 1, batch), command])
    assert level_for(bundle) == 4 and not fault_of(bundle)
    reply = here.machine.apply(bundle, 1 << 40)
    assert [each.code for each in reply.detail] == [Code.OK, Code.OK]
    assert here.kafka.open == {7: OpenTransaction(1, 10, 0, 1, 1)}


def test_impossible_markers_and_batches_are_refused() -> None:
    here = Participant()
    good = here.markers(1)
    assert not fault_of(good)
    change = type(good)
    fields = {field: getattr(good, field) for field in good.__struct_fields__}
    for wrong in (
        {"commit": False},
        {"producer": 8},
        {"epoch": 1},
        {"epoch": -1},
        {"number": 0},
        {"batch": good.batch[:-1]},
        {"batch": control_batch(7, 0, commit=True, decided_ms=-1)},
        {"uids": []},
        {"uids": [(-1, NAME)]},
        {"uids": [(1, NAME)] * 10_001},
        {"groups": [""]},
    ):
        assert fault_of(change(**(fields | wrong))), wrong
    for settle in (
        TxnSettle(0, "", 7, 0, 1, True, 1, 1),
        TxnSettle(1, "g", 7, 0, 1, True, 1, 1),
        TxnSettle(0, "g" * (GROUP_ID_BYTES_MAX + 1), 7, 0, 1, True, 1, 1),
    ):
        assert fault_of(settle)
    batch = kafka_batch(1)
    assert "flags 0" in fault_of(TxnProduce(NAME, 1, batch, kafka_producer(7, 0, 0, 1), txn=1))
    marked = type(batch)(2, 1, batch.payload, batch.crc, flags=1)
    assert "no producer" in fault_of(TxnProduce(NAME, 1, marked, None, txn=1))
    assert "txn is 0" in fault_of(TxnProduce(NAME, 1, marked, kafka_producer(7, 0, 0, 1)))
