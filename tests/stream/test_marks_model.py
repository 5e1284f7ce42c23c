"""Snapshots of a stream against a naive list of them: publish, drop, trim, delete, create again, and
restarts from a chain of snapshots of the group."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from worlds.stream import World, raw_batch

from polynya.base.limits import SNAPSHOT_GRACE_MS, SNAPSHOT_ORIGINS_MAX
from polynya.base.names import companion_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.marks.commands import OVERDUE, DropSnapshot, PublishSnapshot
from polynya.stream.features.marks.held import marks_of, newest
from polynya.stream.features.retention.commands import Trim
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream

NAME = "docs/a"
OWN = companion_of(NAME)
TYPE = "text/plain"
ORIGINS = ("", "r@1", "r@2", "s@1", "t@1", "u@1")
BOUNDS: tuple[list[str] | None, ...] = (None, None, [""], ["r"], ["", "r"], [])


def source(origin: str) -> str:
    return origin.split("@", maxsplit=1)[0]


@dataclass
class Known:
    """A snapshot, as the naive list has it."""

    record: int
    origin: str
    digest: bytes
    part: int
    dropped_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        return bool(self.dropped_ms) and self.dropped_ms + SNAPSHOT_GRACE_MS <= now_ms


@dataclass
class Naive:
    """The stream: how many records it has, the first kept one, and its snapshots."""

    uid: int
    records: int = 0
    first: int = 0
    bodies: list[int] = field(default_factory=list)  # the times of the records of the companion
    companion_uid: int = 0
    marks: list[Known] = field(default_factory=list)

    def of(self, origin: str) -> list[Known]:
        found = [mark for mark in self.marks if source(mark.origin) == source(origin)]
        return sorted(found, key=lambda mark: mark.record)

    def kept(self, origin: str) -> list[Known]:
        return [mark for mark in self.of(origin) if not mark.dropped_ms]


class Snapshots(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(1)
        self.now_ms = 1_000_000
        self.naive: Naive | None = None

    @property
    def stream(self) -> Stream:
        return self.world.machines[1].directory.streams[NAME]

    @property
    def live(self) -> Naive:
        assert self.naive is not None
        return self.naive

    @initialize()
    def begin(self) -> None:
        self.create()
        self.append(4)
        self.stage()

    @precondition(lambda self: self.naive is None)
    @rule()
    def create(self) -> None:
        assert self.world.apply(1, Create(OWN, self.now_ms, TYPE, 0)).code == Code.NOT_FOUND
        reply = self.world.apply(1, Create(NAME, self.now_ms, TYPE, 0))
        self.naive = Naive(reply.uid)

    @precondition(lambda self: self.naive is not None)
    @rule(records=st.integers(1, 3))
    def append(self, records: int) -> None:
        for _ in range(records):
            self.world.apply(1, Append(NAME, self.now_ms, TYPE, raw_batch(b"x")))
        self.live.records += records

    @precondition(lambda self: self.naive is not None)
    @rule()
    def stage(self) -> None:
        """A body whose publisher has not named it yet."""
        made = self.world.apply(1, Create(OWN, self.now_ms, TYPE, 0))
        assert made.code in (Code.CREATED, Code.EXISTS)
        self.live.companion_uid = made.uid
        reply = self.world.apply(1, Append(OWN, self.now_ms, TYPE, raw_batch(b"b")))
        assert reply.record == len(self.live.bodies) + 1
        self.live.bodies.append(self.now_ms)

    @precondition(lambda self: self.naive is not None and self.naive.bodies)
    @rule(
        record=st.integers(0, 16),
        origin=st.sampled_from(ORIGINS),
        digest=st.sampled_from((b"1" * 32, b"2" * 32)),
        kept=st.integers(1, 3),
        bound=st.sampled_from(BOUNDS),
        back=st.integers(0, 2),
    )
    def publish(
        self, record: int, origin: str, digest: bytes, kept: int, bound: list[str] | None, back: int
    ) -> None:
        naive = self.live
        part = max(0, len(naive.bodies) - 1 - back)
        command = PublishSnapshot(
            NAME,
            naive.uid,
            record,
            record,
            naive.companion_uid,
            ((part, part, 1),),
            1,
            digest,
            TYPE,
            origin,
            kept,
            bound,
            self.now_ms,
        )
        reply = self.world.apply(1, command)
        naive_code = self._expected(record, origin, digest, part)
        assert reply.code == naive_code, (reply, naive_code)
        if reply.code != Code.CREATED:
            return
        self._forget()
        naive.marks = [
            mark
            for mark in naive.marks
            if not (mark.record == record and source(mark.origin) == source(origin))
        ]
        naive.marks.append(Known(record, origin, digest, part))
        for mark in naive.kept(origin)[:-kept]:
            mark.dropped_ms = self.now_ms
        self._trim(bound)

    @precondition(lambda self: self.naive is not None)
    @rule(
        origin=st.sampled_from(ORIGINS),
        kept=st.integers(1, 3),
        bound=st.sampled_from(BOUNDS),
    )
    def publish_at_the_tail(self, origin: str, kept: int, bound: list[str] | None) -> None:
        self.append(1)
        self.stage()
        self.publish(self.live.records, origin, b"1" * 32, kept, bound, 0)

    @precondition(lambda self: self.naive is not None)
    @rule(times=st.integers(2, 5), kept=st.integers(1, 3), ms=st.sampled_from((1, 400_000)))
    def publish_often(self, times: int, kept: int, ms: int) -> None:
        for _ in range(times):
            self.publish_at_the_tail("", kept, None)
            self.wait(ms)

    @precondition(lambda self: self.naive is not None)
    @rule()
    def publish_of_each_origin(self) -> None:
        for origin in ORIGINS:
            self.publish_at_the_tail(origin, 2, None)

    def _expected(self, record: int, origin: str, digest: bytes, part: int) -> Code:
        naive = self.live
        if record < naive.first:
            return Code.TRIMMED
        if record > naive.records:
            return Code.OFFSET_BEYOND_TAIL
        there = [mark for mark in naive.marks if not mark.is_over(self.now_ms)]
        same = [mark for mark in there if mark.record == record and mark.origin == origin]
        if same:
            return Code.OK if same[0].digest == digest else Code.SNAPSHOT_CONFLICT
        if any(mark.record > record for mark in naive.kept(origin)):
            return Code.SNAPSHOT_OLDER
        if len({source(mark.origin) for mark in there} | {source(origin)}) > SNAPSHOT_ORIGINS_MAX:
            return Code.SNAPSHOT_ORIGINS
        own = self.world.machines[1].directory.streams[OWN]
        return Code.PARTS_GONE if part < own.first_record else Code.CREATED

    @precondition(lambda self: self.naive is not None)
    @rule(
        record=st.integers(0, 16),
        origin=st.sampled_from(ORIGINS),
        bound=st.sampled_from(BOUNDS),
    )
    def drop(self, record: int, origin: str, bound: list[str] | None) -> None:
        naive = self.live
        command = DropSnapshot(NAME, naive.uid, origin, record, 2, bound, self.now_ms)
        reply = self.world.apply(1, command)
        there = [mark for mark in naive.of(origin) if not mark.is_over(self.now_ms)]
        gone = [mark for mark in there if mark.record == record]
        left = [mark for mark in there if mark.record != record]
        if not gone:
            assert reply.code == Code.NO_SNAPSHOT
            return
        if naive.first and self._cover(gone) and not self._cover(left):
            assert reply.code == Code.SNAPSHOT_NEEDED
            return
        assert reply.code == Code.OK
        self._forget()
        naive.marks = [mark for mark in naive.marks if mark not in gone]
        self._trim(bound)

    def _cover(self, marks: list[Known]) -> bool:
        return any(mark.record >= self.live.first and not mark.dropped_ms for mark in marks)

    @precondition(lambda self: self.naive is not None)
    @rule(bound=st.sampled_from(BOUNDS))
    def sweep(self, bound: list[str] | None) -> None:
        command = DropSnapshot(NAME, self.live.uid, "", OVERDUE, 2, bound, self.now_ms)
        assert self.world.apply(1, command).code == Code.OK
        self._forget()
        self._trim(bound)

    def _forget(self) -> None:
        self.live.marks = [mark for mark in self.live.marks if not mark.is_over(self.now_ms)]

    def _trim(self, bound: list[str] | None) -> None:
        oldest = [self.live.of(origin) for origin in bound or ()]
        if oldest and all(oldest):
            self.live.first = max(self.live.first, min(each[0].record for each in oldest))

    @precondition(lambda self: self.naive is not None)
    @rule(record=st.integers(0, 16))
    def trim(self, record: int) -> None:
        naive = self.live
        self.world.apply(1, Trim([(naive.uid, record, record)], self.now_ms))
        if record <= naive.records:
            naive.first = max(naive.first, record)

    @rule(ms=st.sampled_from((1, SNAPSHOT_GRACE_MS // 2, SNAPSHOT_GRACE_MS)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.naive is not None)
    @rule()
    def delete(self) -> None:
        assert self.world.apply(1, Delete(NAME, self.now_ms)).code == Code.OK
        self.naive = None
        assert not self.world.machines[1].directory.streams

    @rule()
    def restart(self) -> None:
        self.world.restart(1)

    @invariant()
    def has_the_marks_of_the_list(self) -> None:
        directory = self.world.machines[1].directory
        if self.naive is None:
            assert not directory.streams and not directory.marked and not directory.companions
            return
        stream, naive = self.stream, self.naive
        found = [(mark.record, mark.origin, mark.dropped_ms) for mark in marks_of(stream)]
        wanted = [(mark.record, mark.origin, mark.dropped_ms) for mark in naive.marks]
        assert sorted(found) == sorted(wanted)
        assert [mark.record for mark in marks_of(stream)] == sorted(mark[0] for mark in found)
        assert stream.first_record == naive.first
        assert (stream.uid in directory.marked) == bool(found)
        own = directory.streams.get(OWN)
        assert (own is not None) == bool(naive.bodies)
        if own is None:
            return
        named = {record for mark in marks_of(stream) for record, *_ in mark.parts}
        assert all(own.first_record <= record for record in named), "a named body is there"
        young = [at for at, ms in enumerate(naive.bodies) if ms > self.now_ms - SNAPSHOT_GRACE_MS]
        assert all(own.first_record <= record for record in young), "so is a young one"

    @invariant()
    def gives_a_reader_the_newest_that_is_not_behind_the_trim(self) -> None:
        if self.naive is None:
            return
        usable = [m for m in self.naive.marks if m.record >= self.naive.first and not m.dropped_ms]
        own = [mark for mark in usable if not mark.origin] or usable
        mark = newest(marks_of(self.stream), self.naive.first)
        assert (mark is None) == (not own)
        if mark is not None:
            assert mark.record == max(each.record for each in own)


Snapshots.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestSnapshots = Snapshots.TestCase
