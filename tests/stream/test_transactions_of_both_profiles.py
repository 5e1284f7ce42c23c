"""Random transactions on a replicated and on a diskless stream give the same records, flags and
answers, whatever is published or decided between."""

from __future__ import annotations

from copy import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from worlds.packed import commit_of
from worlds.stream import World, kafka_producer
from worlds.transactions import data_batch, stored

from polynya.stream.features.appends.commands import TxnProduce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import DecideEntries, TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import TRANSACTIONAL, UNDECIDED, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.aborted import aborted_of, mark
from polynya.stream.state.model import HotBatch, Stream
from polynya.stream.state.tails import stable_of

NAME = "kafka/t/0"
PRODUCERS = (7, 8, 1 << 47)


class Participant:
    """One stream, in a group of its own."""

    def __init__(self, profile: int) -> None:
        self.world, self.is_diskless = World(1), profile == Profile.DISKLESS
        self.world.checks_copies = False
        self.world.apply(1, Create(NAME, 1, "", Encoding.KAFKA, profile=profile))
        self.commits = 0

    @property
    def stream(self) -> Stream:
        return self.world.machines[1].directory.streams[NAME]

    def write(self, command: TxnProduce) -> Reply:
        if not self.is_diskless:
            return self.world.apply(1, command)
        self.commits += 1
        writer = ("w", self.commits)
        pack = f"p{self.commits}"
        commit = commit_of(self.world, pack, writer, [command], now_ms=command.now_ms)
        reply: Reply = self.world.apply(1, commit).detail[0]
        return reply

    def end(self, producer: int, number: int, *, commit: bool) -> Reply:
        marker = control_batch(producer, 0, commit=commit, decided_ms=5000)
        uids = [(self.stream.uid, NAME)]
        return self.world.apply(1, TxnMarkers(producer, 0, number, commit, marker, uids, [], 2))

    def tidy(self) -> None:
        """Publish what is in memory, or decide what is in packs."""
        stream = self.stream
        if self.is_diskless:
            self.world.apply(1, DecideEntries([(stream.uid, 0, 1 << 60)], 2))
        elif stream.hot:
            self.commits += 1
            cold = self.world.slice_of(stream, len(stream.hot), f"f{self.commits}")
            flags = 0
            for batch in stream.hot:
                flags |= batch.flags
            changed = {"flags": flags | (UNDECIDED if flags & TRANSACTIONAL else 0)}
            fields = {field: getattr(cold, field) for field in cold.__struct_fields__} | changed
            publish = PublishSlices(cold.pack, 1, 1, [(stream.uid, type(cold)(**fields))])
            assert self.world.apply(1, publish).detail == [0]

    def seen(self) -> list[tuple[Any, ...]]:
        """Return the batches as a reader gets them, with their decided flags."""
        found: list[HotBatch] = []
        for cold in self.world.machines[1].packs.index_of(self.stream):
            batches = [copy(each) for each in self.world.batches_of(cold)]
            if cold.flags & UNDECIDED:
                mark(batches, aborted_of(self.stream))
            found += batches
        found += self.stream.hot or []
        return [(each.record, each.byte, bytes(each.payload), each.flags) for each in found]


ACTIONS = st.tuples(
    st.sampled_from(["write", "write", "commit", "abort", "late", "tidy"]),
    st.sampled_from(PRODUCERS),
)


@given(st.lists(ACTIONS, max_size=25))
def test_both_profiles_have_the_same_records(actions: list[tuple[str, int]]) -> None:
    both = [Participant(Profile.NAMED_REPLICATED), Participant(Profile.DISKLESS)]
    numbers = dict.fromkeys(PRODUCERS, 1)
    sequences = dict.fromkeys(PRODUCERS, 0)
    for action, producer in actions:
        number = numbers[producer]
        if action == "tidy":
            for each in both:
                each.tidy()
        elif action in ("commit", "abort"):
            codes = {each.end(producer, number, commit=action == "commit").code for each in both}
            assert codes == {Code.OK}
            numbers[producer] += 1
        else:
            late = action == "late" and number > 1
            payload = data_batch(producer, sequences[producer], b"v")
            command = TxnProduce(
                NAME,
                1,
                stored(payload, 1, TRANSACTIONAL),
                kafka_producer(producer, 0, sequences[producer], 1),
                txn=number - late,
            )
            replies = [each.write(command) for each in both]
            assert replies[0] == replies[1]
            assert replies[0].code == (Code.TXN_ENDED if late else Code.OK)
            sequences[producer] += not late
    assert both[0].seen() == both[1].seen()
    assert stable_of(both[0].stream) == stable_of(both[1].stream)
    kafka = [each.stream.kafka for each in both]
    assert (kafka[0] and kafka[0].ended) == (kafka[1] and kafka[1].ended)
    assert (kafka[0] and kafka[0].open) == (kafka[1] and kafka[1].open)
