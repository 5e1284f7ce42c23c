"""A diskless stream against a replicated one that is given the same appends: the replies, the tails
and the records are the same, however the appends are packed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from msgspec import structs
from worlds.packed import Packable, commit_of
from worlds.stream import World, json_batch, kafka_batch, kafka_producer

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.retention.commands import Trim
from polynya.stream.parts import Encoding, Producer
from polynya.stream.read_plan import Want
from polynya.stream.replies import Code, Reply
from polynya.stream.sense import fault_of
from polynya.stream.snapshots.encode import snapshot_of

NAMES = ("a", "b")
JSON = "application/json"
MUCH = Want(-1, 0, 1 << 20)

producers = st.none() | st.builds(
    Producer, st.sampled_from(["p", "q"]), st.integers(0, 1), st.integers(0, 4)
)
bodies = st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=3)
appends = st.builds(
    lambda name, records, producer, seq, close, uid, kind: Append(
        name,
        0,
        JSON if kind < 9 else "text/plain",
        json_batch(*records) if records else None,
        producer,
        seq,
        close or not records,
        {0: 1 << 48 | 1, 1: 7}.get(uid, 0),
    ),
    st.sampled_from(NAMES),
    st.one_of(bodies, bodies, bodies, st.just([])),
    producers,
    st.sampled_from([None, None, None, "b", "c", "d"]),
    st.integers(0, 15).map(lambda number: number == 0),
    st.integers(0, 12),
    st.integers(0, 9),
)
produces = st.builds(
    lambda name, records, writer, sequence: Produce(
        name, 0, kafka_batch(records), kafka_producer(writer, 0, sequence, records)
    ),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(7, 8),
    st.sampled_from([0, 1, 2, 3, 4, 6, 2**31 - 1]),
)
others = st.sampled_from(
    [
        Delete("a", 0),
        Create("a", 0, JSON, Encoding.JSON),
        Create("b", 0, JSON, Encoding.JSON),
        Trim([(1 << 48 | 1, 1, -1), (1 << 48 | 2, 2, -1)], 0, ["a", "b"]),
    ]
)
# a writer has one slice for each stream, unless the encoding changes
packs = st.lists(appends | appends | produces, min_size=1, max_size=8).map(
    lambda some: sorted(some, key=lambda each: each.name)
)
steps = st.lists(packs | packs | packs | others, min_size=1, max_size=8)


class Pair:
    """The same streams twice."""

    def __init__(self) -> None:
        self.diskless, self.replicated = World(1), World(1)
        self.now_ms = 1000
        self.number = 0
        for name in NAMES:
            self.other(Create(name, 0, JSON, Encoding.JSON))

    def other(self, command: Command) -> None:
        command = structs.replace(command, now_ms=self.now_ms)
        known = self.replicated.apply(1, command)
        if isinstance(command, Create):
            command = structs.replace(command, profile=Profile.DISKLESS)
        found = self.diskless.apply(1, command)
        if not isinstance(command, Trim):  # a cut inside a slice is found by a read
            assert found == known

    def append(self, some: list[Packable]) -> list[Reply]:
        """Append each to the one stream, and all of them with one commit to the other."""
        stamped: list[Packable] = [structs.replace(each, now_ms=self.now_ms) for each in some]
        expected = [self.replicated.apply(1, each) for each in stamped]
        self.number += 1
        command = commit_of(
            self.diskless, f"pack{self.number}", ("w", self.number), stamped, now_ms=self.now_ms
        )
        assert fault_of(command) == ""
        reply = self.diskless.apply(1, command)
        assert (reply.code, reply.detail) == (Code.OK, expected)
        state = snapshot_of(self.diskless.machines[1])
        again = self.diskless.apply(1, structs.replace(command, now_ms=self.now_ms))
        assert again == reply and snapshot_of(self.diskless.machines[1]) == state
        return expected

    def check(self) -> None:
        known, found = self.replicated.machines[1], self.diskless.machines[1]
        assert known.directory.streams.keys() == found.directory.streams.keys()
        for name, stream in known.directory.streams.items():
            other = found.directory.streams[name]
            for field in (
                "uid", "next_record", "next_byte", "closed", "closed_by", "stream_seq", "producers",
                "activity_ms",
            ):  # fmt: skip
                assert getattr(other, field) == getattr(stream, field), field
            assert other.hot is None
            if stream.first_record == other.first_record:
                assert self.diskless.read(other, MUCH) == self.replicated.read(stream, MUCH)


@given(steps)
@settings(max_examples=examples(120), deadline=None)
def test_a_commit_does_what_its_appends_do_alone(some: list[list[Packable] | Command]) -> None:
    pair = Pair()
    for step in some:
        pair.now_ms += 7
        if isinstance(step, list):
            pair.append(step)
        else:
            pair.other(step)
        pair.check()


def test_live_readers_are_told_of_numbers_only() -> None:
    pair = Pair()
    uid = 1 << 48 | 1
    for world in (pair.diskless, pair.replicated):
        world.machines[1].tails.watched = {uid}
    some = [
        Append("a", 0, JSON, json_batch(b"1", b"22")),
        Append("a", 0, JSON, json_batch(b"3"), producer=Producer("p", 0, 5)),
        Append("a", 0, "", None, close=True),
    ]
    pair.append([*some, Produce("a", 0, kafka_batch(2))])
    found = pair.diskless.machines[1].tails.take_effects()
    expected = [
        structs.replace(each, batch=None)
        for each in pair.replicated.machines[1].tails.take_effects()
    ]
    assert found == expected and [each.record for each in found] == [2, 2]
    assert [(each.begin_record, each.begin_byte, each.byte) for each in found] == [
        (0, 0, 5),
        (2, 5, 5),
    ]
