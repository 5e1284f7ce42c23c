"""The rows of aborted transactions against a list of them, and a slice that is built while its
transaction is open and published after that was aborted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from worlds.stream import World, kafka_batch, kafka_producer

from polynya.base.names import group_of
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.appends.transactions import end_transaction
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.parts import CONTROL, TRANSACTIONAL, UNDECIDED, Encoding
from polynya.stream.state.aborted import ROW, overlapping, without_settled
from polynya.stream.state.model import HotBatch, KafkaState, OpenTransaction, Stream

NAME = "kafka/t/0"
GROUP = group_of(NAME, 2)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """The rows of a log of transactions, of which any number may be open at a time."""
    opened: dict[int, int] = {}
    rows = b""
    for record in range(draw(st.integers(1, 40))):
        producer = draw(st.integers(1, 5))
        if producer in opened and draw(st.booleans()):
            first = opened.pop(producer)
            rows += ROW.pack(producer, first, record, min(opened.values(), default=record + 1))
        else:
            opened.setdefault(producer, record)
    return rows


@given(logs(), st.integers(0, 40), st.integers(1, 40))
def test_the_rows_of_a_range_are_those_that_overlap_it(rows: bytes, begin: int, size: int) -> None:
    end = begin + size
    found = [*ROW.iter_unpack(overlapping(rows, begin, end))]
    every = [*ROW.iter_unpack(rows)]
    assert found == [row for row in every if row[1] < end and row[2] >= begin]


@given(logs(), st.integers(0, 40), st.integers(1, 40), st.sets(st.integers(0, 40)))
def test_rows_go_inside_a_range_alone_when_they_are_not_needed(
    rows: bytes, begin: int, size: int, needed: set[int]
) -> None:
    end = begin + size
    left = without_settled(rows, (begin, end), lambda first, marker: marker in needed)
    assert [*ROW.iter_unpack(left)] == [
        row for row in ROW.iter_unpack(rows) if row[1] >= end or row[2] < begin or row[2] in needed
    ]


class Written:
    """A stream with a transaction of producer 7 in its first two batches."""

    def __init__(self) -> None:
        self.world = World(2)
        self.world.checks_copies = False
        self.world.apply(GROUP, Create(NAME, 1, "", Encoding.KAFKA))
        self.stream.kafka = KafkaState(open={7: OpenTransaction(0, 0, 0, 2)})
        for sequence in range(2):
            self.produce(TRANSACTIONAL, sequence)

    @property
    def stream(self) -> Stream:
        return self.world.machines[GROUP].directory.streams[NAME]

    def produce(self, flags: int, sequence: int = -1) -> None:
        batch = structs.replace(kafka_batch(1, b"p" * 70), flags=flags)
        producer = kafka_producer(7, 0, sequence, 1) if sequence >= 0 else None
        assert self.world.apply(GROUP, Produce(NAME, 2, batch, producer)).code == 0

    def abort(self) -> None:
        self.produce(TRANSACTIONAL | CONTROL)
        end_transaction(self.world.machines[GROUP], self.stream, 7, commit=False)

    @property
    def hot(self) -> list[HotBatch]:
        return self.stream.hot or []

    @property
    def rows(self) -> list[tuple[int, ...]]:
        assert self.stream.kafka is not None
        return [*ROW.iter_unpack(self.stream.kafka.aborted)]

    def publish(self, batches: int, flags: int, pack: str) -> None:
        cold = self.world.slice_of(self.stream, batches, pack)
        publish = PublishSlices(pack, 1, 1, [(self.stream.uid, structs.replace(cold, flags=flags))])
        assert self.world.apply(GROUP, publish).detail == [0]


def test_an_abort_marks_what_is_in_memory_and_keeps_a_row_until_that_is_in_slices() -> None:
    written = Written()
    written.abort()
    assert [batch.flags for batch in written.hot] == [5, 5, 3]
    assert written.rows == [(7, 0, 2, 3)]
    written.publish(1, 5, "p1")
    assert written.rows == [(7, 0, 2, 3)], "the rest may be in a slice that was built before"
    written.publish(2, 7, "p2")
    assert written.rows == []


def test_a_slice_that_was_built_before_the_abort_keeps_the_row() -> None:
    written = Written()
    cold = written.world.slice_of(written.stream, 2, "early")
    early = structs.replace(cold, flags=TRANSACTIONAL | UNDECIDED)
    written.abort()
    publish = PublishSlices("early", 1, 1, [(written.stream.uid, early)])
    assert written.world.apply(GROUP, publish).detail == [0]
    written.publish(1, 3, "late")
    assert written.rows == [(7, 0, 2, 3)]


def test_the_stable_end_is_that_of_the_oldest_transaction() -> None:
    written = Written()
    kafka = written.stream.kafka
    assert kafka is not None
    kafka.open[9] = OpenTransaction(2, 140, 0, 2)
    written.abort()
    assert written.rows == [(7, 0, 2, 2)], "that of 9 is open"
