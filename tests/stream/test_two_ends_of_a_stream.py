"""An open transaction planted in the state: forks, subscriptions, tables, trims, retention and
eviction stop at it."""

from __future__ import annotations

import msgspec
import pytest
from worlds.stream import World, json_batch
from worlds.transactions import plant_end

from polynya.base.names import group_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.lifetimes.commands import Create, Touch
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.pages.eviction import is_evictable
from polynya.stream.features.retention import rules as retention
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.subscriptions.commands import AckLinks, LinkSubscription
from polynya.stream.features.subscriptions.links import oldest_links, pending_watches
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.features.tables.rules import lag_of
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding, Retention
from polynya.stream.read_plan import ReadRefused, Want
from polynya.stream.replies import Code
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream
from polynya.stream.state.tails import high_watermark, stable_of

NAME = "docs/a"
GROUP = group_of(NAME, 2)


class Planted:
    """Six records, two a batch; the second batch is the first of an open transaction."""

    def __init__(self) -> None:
        self.world = World(2)
        self.world.apply(GROUP, Create(NAME, 1, "application/json", Encoding.JSON))
        self.append(b"0", b"1")
        self.stream.kafka = KafkaState(open={7: OpenTransaction(2, 4, 0, 2)})
        self.append(b"2", b"3")
        self.append(b"4", b"5")

    @property
    def machine(self) -> Machine:
        return self.world.machines[GROUP]

    @property
    def stream(self) -> Stream:
        return self.machine.directory.streams[NAME]

    def append(self, *records: bytes) -> None:
        reply = self.world.apply(GROUP, Append(NAME, 2, "application/json", json_batch(*records)))
        assert reply.code == Code.OK

    def end(self, producer: int) -> None:
        """End a transaction; the rule is planted."""
        self.world.apply(GROUP, Touch([(self.stream.uid, producer)], 3))

    def flush(self, batches: int) -> None:
        cold = self.world.slice_of(self.stream, batches, f"p{self.world.position}")
        publish = PublishSlices(cold.pack, 1, 1, [(self.stream.uid, cold)])
        assert self.world.apply(GROUP, publish).detail == [0]


def test_the_two_ends() -> None:
    planted = Planted()
    assert (stable_of(planted.stream), high_watermark(planted.stream)) == ((2, 4), (6, 12))
    planted.stream.kafka = KafkaState(
        open={9: OpenTransaction(2, 4, 0, 2), 7: OpenTransaction(4, 8, 0, 2)}
    )
    assert stable_of(planted.stream) == (2, 4)
    planted.stream.kafka = KafkaState()
    assert stable_of(planted.stream) == (6, 12)


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_reads_stop_at_it(flushed: int) -> None:
    """Stop also where a slice reaches into the transaction."""
    planted = Planted()
    if flushed:
        planted.flush(flushed)
    assert planted.world.read(planted.stream, Want(0, 0, 100)) == (b"0,1,", (0, 0), (2, 4))
    plan = planted.machine.plan_read(
        planted.stream, 0, 0, bytes_max=100, whole_records=True, uncommitted=True
    )
    assert not isinstance(plan, ReadRefused)
    assert (plan.record, plan.byte) == (6, 12)
    behind = planted.machine.plan_read(planted.stream, 5, 10, bytes_max=9, whole_records=True)
    assert not isinstance(behind, ReadRefused)
    assert (behind.pieces, behind.record) == ([], 5)


def test_forks_begin_before_it() -> None:
    planted = Planted()
    tail = planted.world.apply(GROUP, PinSource(NAME, "a" * 32, "docs/b", 5))
    assert tail.detail[:2] == [2, 4]
    later = PinSource(NAME, "b" * 32, "docs/c", 5, record=4, byte=8)
    assert planted.world.apply(GROUP, later).code == Code.OFFSET_BEYOND_TAIL
    resolved = msgspec.structs.replace(later, resolved=True)
    assert planted.world.apply(GROUP, resolved).code == Code.OFFSET_BEYOND_TAIL
    sub = PinSource(NAME, "c" * 32, "docs/d", 5, record=1, byte=2, sub_offset=2)
    assert planted.world.apply(GROUP, sub).code == Code.SUB_OFFSET


def test_subscriptions_wait_for_its_end() -> None:
    planted = Planted()
    planted.world.apply(GROUP, LinkSubscription("s", 9, 1, "docs/*", "", []))
    (info,) = oldest_links(planted.machine, "s", 9, 10)
    assert info.record == 2, "what the transaction holds comes later"
    planted.append(b"6")
    assert pending_watches(planted.machine) == []
    assert planted.world.apply(GROUP, AckLinks("s", 9, [(NAME, planted.stream.uid, 3, 6)])).detail
    planted.stream.kafka = None
    planted.append(b"7")
    assert [each[0] for each in pending_watches(planted.machine)] == ["s"]


def test_its_end_tells_subscriptions_and_watched_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_end(monkeypatch)
    planted = Planted()
    machine, stream = planted.machine, planted.stream
    assert stream.kafka is not None
    stream.kafka.open[9] = OpenTransaction(4, 8, 0, 2)
    planted.world.apply(GROUP, LinkSubscription("s", 9, 1, "docs/*", "", []))
    machine.tails.watched = {stream.uid}
    machine.take_changes()
    planted.end(9)
    assert (machine.tails.take_effects(), machine.subscriptions.wakes) == ([], {}), "7 holds more"
    assert machine.take_changes().streams == {stream.uid}
    planted.end(7)
    assert machine.tails.take_effects() == [TailMoved(stream.uid, 2, 4, 6, 12)]
    assert machine.subscriptions.wakes == {"s": (9, NAME)}
    assert [each[0] for each in pending_watches(machine)] == ["s"]
    assert planted.world.read(stream, Want(2, 4, 100)) == (b"2,3,4,5,", (2, 4), (6, 12))


def test_tables_take_what_its_end_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_end(monkeypatch)
    planted = Planted()
    planted.flush(3)
    claim = ClaimRanges(7, 1, 0, "docs/", [], 1 << 20, True)
    assert [each.slices for each in planted.world.apply(GROUP, claim).detail] == []
    planted.end(7)
    again = ClaimRanges(7, 2, 1, "docs/", [], 1 << 20, True)
    (taken,) = planted.world.apply(GROUP, again).detail
    assert [(cold.record, cold.records) for cold in taken.slices] == [(0, 6)]


def test_tables_take_what_lies_before_it() -> None:
    planted = Planted()
    planted.flush(1)
    planted.flush(2)
    claim = ClaimRanges(7, 1, 0, "docs/", [], 1 << 20, True)
    (taken,) = planted.world.apply(GROUP, claim).detail
    assert [(cold.record, cold.records) for cold in taken.slices] == [(0, 2)]
    assert [lag.records for lag in lag_of(planted.machine, 7, "docs/", [], 1)][-1] == 0
    assert not is_evictable(planted.stream)
    planted.stream.kafka = None
    assert [lag.records for lag in lag_of(planted.machine, 7, "docs/", [], 1)][-1] == 4
    again = ClaimRanges(7, 2, 1, "docs/", [], 1 << 20, True)
    (taken,) = planted.world.apply(GROUP, again).detail
    assert [(cold.record, cold.records) for cold in taken.slices] == [(2, 4)]


def test_trims_and_retention_end_at_it() -> None:
    planted = Planted()
    cut = retention.cut_of(planted.stream, Retention(1, None), 10_000_000)
    assert cut.boundary == (2, 4)
    cut = retention.cut_of(planted.stream, Retention(None, 0), 10_000_000)
    assert cut.boundary == (2, 4)
    uid = planted.stream.uid
    assert planted.world.apply(GROUP, Trim([(uid, 4, 8)], 9)).detail == [None]
    assert planted.world.apply(GROUP, Trim([(uid, 2, 4)], 9)).detail == [(2, 4, 2, 4)]


GOLDEN_STATE = "940581079602040109030cc420" + "61" * 32 + "810793030809"


def test_bytes_of_transactions_are_golden() -> None:
    state = KafkaState(5, {7: OpenTransaction(2, 4, 1, 9, 3, 12)}, b"a" * 32, {7: (3, 8, 9)})
    stream = Stream(1, "docs/a", "text/plain", 0, 1, 1, kafka=state)
    data = msgspec.msgpack.encode(stream)
    assert data.hex().endswith(GOLDEN_STATE)
    assert msgspec.msgpack.decode(data, type=Stream).kafka == state
    before = msgspec.msgpack.decode(bytes.fromhex("9105"), type=KafkaState)
    assert before == KafkaState(5)
