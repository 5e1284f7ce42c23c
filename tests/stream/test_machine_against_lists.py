"""The machine against a naive model: a stream is a list of records, and a fork is a copied list."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from long_tests import examples
from msgspec import structs
from worlds.stream import World, json_batch, raw_batch

from polynya.base.limits import RAW_STEP_BYTES
from polynya.base.names import group_of
from polynya.stream import read_plan
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.packs.commands import PublishSlices, ReplaceSlices
from polynya.stream.features.pages.eviction import evicted_view, needed_by
from polynya.stream.features.retention.commands import Trim
from polynya.stream.parts import Encoding, Fork
from polynya.stream.read_plan import AT_BYTE, ReadRefused, Want
from polynya.stream.replies import Code, Reply
from polynya.stream.state import chunked, pack_tables
from polynya.stream.state.index import ENTRY_BYTES
from polynya.stream.state.model import Stream

GROUPS = 2
NAMES = [f"docs/{letter}" for letter in "abcdef"]
SIZES = st.one_of(
    st.integers(1, 12),
    st.sampled_from([RAW_STEP_BYTES - 1, RAW_STEP_BYTES, RAW_STEP_BYTES + 1, 150_000]),
)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """Indexes of these tests are short, and in chunks all the same; few packs are objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK", 2)
        patch.setattr(pack_tables, "RECENT_MAX", 2)
        yield


class Naive:
    """The records of a stream, as they lie in it."""

    def __init__(self, encoding: int, records: list[bytes]) -> None:
        self.encoding = encoding
        self.records = records
        self.closed = False
        self.first = 0

    @property
    def bounds(self) -> list[int]:
        return list(accumulate(map(len, self.records), initial=0))


class EvictingWorld(World):
    """A world with evicted streams: a command that needs one is told so, and succeeds after the
    rehydration."""

    def apply(self, group: int, command: Command) -> Reply:
        reply = super().apply(group, command)
        if reply.code != Code.EVICTED:
            return reply
        self.bring(group, list(needed_by(self.machines[group], command)))
        return super().apply(group, command)


class AgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = EvictingWorld(GROUPS)
        self.known: dict[str, Naive] = {}
        self.clock = 0
        self.fill = 0

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for name, encoding in zip(NAMES[:2], (Encoding.BYTES, Encoding.JSON), strict=True):
            self.create(name, encoding)
            self.append(data, [[3], [1, 2]])

    def stream(self, name: str) -> Stream:
        group = group_of(name, GROUPS)
        if name in self.world.machines[group].directory.evicted:
            self.world.bring(group, [name])
        stream = self.world.machines[group].directory.lookup(name)
        assert stream is not None
        return stream

    def body(self, size: int) -> bytes:
        self.fill = (self.fill + 1) % 10
        return b"%d" % self.fill * size

    @rule(name=st.sampled_from(NAMES), encoding=st.sampled_from([Encoding.BYTES, Encoding.JSON]))
    def create(self, name: str, encoding: int) -> None:
        self.clock += 1
        reply = self.world.apply(
            group_of(name, GROUPS), Create(name, self.clock, f"type/{encoding}", encoding)
        )
        known = self.known.get(name)
        if known is None:
            if reply.code in (Code.GONE, Code.ATTEMPT_PENDING):
                assert self.stream(name).deleted
                return
            assert reply.code == Code.CREATED
            self.known[name] = Naive(encoding, [])
        else:
            same = (
                known.encoding == encoding and not known.closed and self.stream(name).fork is None
            )
            assert reply.code == (Code.EXISTS if same else Code.EXISTS_DIFFERENT)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        batches=st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=1, max_size=4),
    )
    def append(self, data: st.DataObject, batches: list[list[int]]) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        closes = data.draw(st.integers(0, 9)) == 9
        for sizes in batches:
            self.append_one(name, sizes, closes and sizes is batches[-1])

    def append_one(self, name: str, sizes: list[int], close: bool) -> None:
        known = self.known[name]
        self.clock += 1
        bodies = [self.body(size) for size in sizes]
        batch = json_batch(*bodies) if known.encoding == Encoding.JSON else raw_batch(bodies[0])
        command = Append(name, self.clock, f"type/{known.encoding}", batch, close=close)
        reply = self.world.apply(group_of(name, GROUPS), command)
        if known.closed:
            assert reply.code == Code.CLOSED
            return
        assert reply.code == Code.OK
        assert reply.first_record == len(known.records)
        known.records += (
            [body + b"," for body in bodies] if known.encoding == Encoding.JSON else bodies[:1]
        )
        known.closed = close
        assert (reply.record, reply.byte, reply.closed) == (
            len(known.records),
            known.bounds[-1],
            close,
        )

    @precondition(lambda self: len(self.known) > 2)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        assert self.world.apply(group_of(name, GROUPS), Delete(name, self.clock)).code == Code.OK
        del self.known[name]

    @precondition(lambda self: self.known)
    @rule(data=st.data(), mostly=st.booleans())
    def trim(self, data: st.DataObject, mostly: bool) -> None:
        """Some records go from the fronts of some streams, in one command that is sent twice; what
        is no boundary is refused."""
        names = data.draw(
            st.lists(st.sampled_from(sorted(self.known)), min_size=1, max_size=3, unique=True)
        )
        self.clock += 1
        for name in names:
            known = self.known[name]
            low = max(known.first, len(known.records) - 3) if mostly else 0
            record = data.draw(st.integers(low, len(known.records)))
            stream = self.stream(name)
            command = Trim([(stream.uid, record, known.bounds[record])], self.clock)
            went = max(record - known.first, 0)
            size = known.bounds[known.first + went] - known.bounds[known.first]
            known.first += went
            at = (known.first, known.bounds[known.first])
            assert self.world.apply(stream.uid >> 48, command).detail == [(*at, went, size)]
            assert self.world.apply(stream.uid >> 48, command).detail == [(*at, 0, 0)]
            beyond = Trim([(stream.uid, len(known.records) + 1, known.bounds[-1] + 9)], self.clock)
            assert self.world.apply(stream.uid >> 48, beyond).detail == [None]
            assert (stream.first_record, stream.first_byte) == at

    @precondition(lambda self: any(each.directory.streams for each in self.world.machines.values()))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Evict the evictable ones of some streams; the stored state of a changed stream is not
        used for it."""
        group = data.draw(
            st.sampled_from(
                [
                    group
                    for group, machine in self.world.machines.items()
                    if machine.directory.streams
                ]
            )
        )
        machine = self.world.machines[group]
        names = data.draw(
            st.lists(st.sampled_from(sorted(machine.directory.streams)), max_size=4, unique=True)
        )
        self.clock += 1
        for name in self.world.evict(group, names, self.clock):
            naive, ghost = self.known[name], evicted_view(machine, name)
            assert ghost is not None and machine.directory.lookup(name) is None
            assert (ghost.next_record, ghost.next_byte, ghost.closed) == (
                len(naive.records),
                naive.bounds[-1],
                naive.closed,
            )
            assert (ghost.first_record, ghost.first_byte) == (
                naive.first,
                naive.bounds[naive.first],
            )
            assert (
                machine.apply(
                    Append(name, self.clock, f"type/{naive.encoding}", None, close=True)
                ).code
                == Code.EVICTED
            )

    @precondition(
        lambda self: any(machine.directory.evicted for machine in self.world.machines.values())
    )
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        group = data.draw(
            st.sampled_from(
                [
                    group
                    for group, machine in self.world.machines.items()
                    if machine.directory.evicted
                ]
            )
        )
        names = sorted(self.world.machines[group].directory.evicted)
        self.clock += 1
        self.world.bring(
            group, data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)), self.clock
        )

    @rule(group=st.integers(1, GROUPS))
    def restart(self, group: int) -> None:
        self.world.restart(group)

    @rule()
    def deliver(self) -> None:
        for machine in self.world.machines.values():
            for message, (group, command) in list(machine.outbox.messages.items()):
                self.world.apply(group, command)
                self.world.apply(group, command)  # idempotent
                self.world.apply(machine.group, Acknowledge(message))

    @precondition(
        lambda self: any(machine.directory.hot for machine in self.world.machines.values())
    )
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        """Some hot batches of some streams (deleted ones too) go into a pack, in one publish that
        is sent twice."""
        group = data.draw(
            st.sampled_from(
                [group for group, machine in self.world.machines.items() if machine.directory.hot]
            )
        )
        self.clock += 1
        pack = f"pack{self.clock}"
        slices = []
        for stream, hot in self.world.machines[group].directory.flush_candidates():
            count = data.draw(st.integers(0, len(hot)))
            if count:
                slices.append((stream.uid, self.world.slice_of(stream, count, pack)))
        before = self.world.machines[group].directory.hot_bytes
        command = PublishSlices(pack, 1, 1, slices)
        machine = self.world.machines[group]
        assert self.world.apply(group, command).detail == list(range(len(slices)))
        known = [
            cold.record
            in [each.record for each in machine.packs.whole_index_of(machine.directory.by_uid[uid])]
            for uid, cold in slices
        ]
        trimmed = [
            cold.record + cold.records <= machine.directory.by_uid[uid].first_record
            for uid, cold in slices
        ]
        assert all(each or gone for each, gone in zip(known, trimmed, strict=True))
        assert self.world.apply(group, command).detail == [
            number for number, each in enumerate(known) if each
        ]
        assert before - machine.directory.hot_bytes >= sum(cold.length for _, cold in slices)

    @precondition(
        lambda self: any(
            len(stream.cold or b"") > ENTRY_BYTES
            for machine in self.world.machines.values()
            for stream in machine.directory.streams.values()
        )
    )
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Neighbours in some indexes become one slice, in one command that is sent twice; what
        straddles entries is refused."""
        group = data.draw(
            st.sampled_from(
                [group for group, machine in self.world.machines.items() if machine.packs.held]
            )
        )
        machine = self.world.machines[group]
        self.clock += 1
        pack = f"pack{self.clock}"
        replacements = []
        for stream in machine.directory.streams.values():
            entries = machine.packs.index_of(stream)[:]
            if entries and data.draw(st.booleans()):
                begin = data.draw(st.integers(0, len(entries) - 1))
                end = data.draw(st.integers(begin + 1, len(entries)))
                replacements.append((stream.uid, self.world.merged(entries[begin:end], pack)))
        before = {
            stream.uid: machine.packs.index_of(stream)[:]
            for stream in machine.directory.streams.values()
        }
        command = ReplaceSlices(pack, 1, 1, replacements)
        assert self.world.apply(group, command).detail == list(range(len(replacements)))
        assert self.world.apply(group, command).detail == list(range(len(replacements)))
        for uid, cold in replacements:
            outside = [
                each
                for each in before[uid]
                if not cold.record <= each.record < cold.record + cold.records
            ]
            assert [
                each
                for each in machine.packs.index_of(machine.directory.by_uid[uid])
                if each.pack != pack
            ] == outside
            for wrong in (
                structs.replace(cold, records=cold.records + 1),
                structs.replace(cold, byte=cold.byte + 1),
                structs.replace(cold, record=cold.record + 1),
            ):
                other = ReplaceSlices("other", 1, 1, [(uid, structs.replace(wrong, pack="other"))])
                assert self.world.restored(machine).apply(other).detail == []

    @precondition(lambda self: self.known)
    @rule(data=st.data(), fork_name=st.sampled_from(NAMES))
    def fork(self, data: st.DataObject, fork_name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[source]
        record = data.draw(st.one_of(st.just(known.first), st.integers(0, len(known.records))))
        limit = (
            len(known.records) - record
            if known.encoding == Encoding.JSON
            else known.bounds[-1] - known.bounds[record]
        )
        sub_offset = data.draw(st.integers(0, limit))
        self.clock += 1
        attempt = f"attempt{self.clock}"
        pin = PinSource(
            source,
            attempt,
            fork_name,
            self.clock,
            record,
            known.bounds[record],
            sub_offset=sub_offset,
        )
        pinned = self.world.apply(group_of(source, GROUPS), pin)
        if pinned.code == Code.NOT_YET:
            hot = self.stream(source).hot
            assert not hot or record < hot[0].record
            return
        if pinned.code == Code.TRIMMED:
            assert record < known.first
            assert (pinned.record, pinned.byte) == (known.first, known.bounds[known.first])
            return
        assert record >= known.first or (record == 0 and not sub_offset)
        at_record, at_byte, *_, depth, prefix, first_record, first_byte = pinned.detail
        assert first_record == min(known.first, at_record)
        assert first_byte == known.bounds[first_record]
        records = self.expected_past(known, record, sub_offset)
        past = records[: at_record + (prefix > 0)]
        assert past == records
        assert known.bounds[at_record] == at_byte
        batch = raw_batch(records[-1]) if prefix else None
        fork = Fork(
            attempt, source, pinned.uid, at_record, at_byte, depth=depth, first_record=first_record, first_byte=first_byte
        )  # fmt: skip
        create = Create(
            fork_name, self.clock, f"type/{known.encoding}", known.encoding, batch=batch, fork=fork
        )
        created = self.world.apply(group_of(fork_name, GROUPS), create)
        if created.code == Code.CREATED:
            assert fork_name not in self.known
            self.known[fork_name] = Naive(known.encoding, records)
            self.known[fork_name].first = first_record
            self.world.apply(group_of(source, GROUPS), ConfirmPin(pinned.uid, attempt))
        else:
            assert (
                self.world.apply(
                    group_of(fork_name, GROUPS), RefuseAttempt(fork_name, attempt, self.clock)
                ).code
                == Code.OK
            )
            assert self.world.apply(group_of(fork_name, GROUPS), create).code != Code.CREATED
            self.world.apply(group_of(source, GROUPS), Unpin(pinned.uid, attempt, self.clock))

    def expected_past(self, known: Naive, record: int, sub_offset: int) -> list[bytes]:
        if known.encoding == Encoding.JSON:
            return known.records[: record + sub_offset]
        past = list(known.records[:record])
        for body in known.records[record:]:
            if sub_offset <= 0:
                break
            past.append(body[:sub_offset])
            sub_offset -= len(body)
        return past

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        bytes_max=st.sampled_from([1, 5, 20, 70_000, 150_000, 1 << 20]),
        whole=st.booleans(),
    )
    def read_pages(self, data: st.DataObject, bytes_max: int, whole: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[name]
        stream = self.world.copy(group_of(name, GROUPS), name)
        bounds = known.bounds
        everything = b"".join(known.records)
        record = data.draw(st.one_of(st.just(0), st.integers(0, len(known.records))))
        at_byte = data.draw(st.booleans())
        byte = data.draw(st.integers(0, bounds[-1])) if at_byte else bounds[record]
        position = (AT_BYTE, byte) if at_byte else (record, byte + data.draw(st.integers(-3, 3)))
        if not at_byte:
            # A token whose byte half disagrees means the record's start, unless it is a raw step by
            # chance.
            inner = position[1] - bounds[record]
            assert inner % RAW_STEP_BYTES or inner == 0
        elif known.encoding == Encoding.JSON or whole:
            byte = max(bound for bound in bounds if bound <= byte)
        if byte < bounds[known.first]:
            refused = self.world.read(stream, Want(*position, bytes_max, whole))
            if not at_byte or position[1] < bounds[known.first]:
                assert refused == ReadRefused(Code.TRIMMED, known.first, bounds[known.first])
            return
        for _ in range(4):
            page = self.world.read(stream, Want(*position, bytes_max, whole))
            assert not isinstance(page, ReadRefused)
            payload, begin, end = page
            assert begin[1] == byte
            assert payload == everything[byte : end[1]]
            # The budget goes by the byte that was asked for, where the record's start is not known
            # here.
            self.check_end(
                known,
                begin,
                end,
                (bytes_max + (0 if at_byte else max(0, position[1] - byte)), whole),
            )
            position, byte = end, end[1]
        assert isinstance(self.world.read(stream, Want(len(bounds), 0, bytes_max)), ReadRefused)

    def check_end(
        self, known: Naive, begin: tuple[int, int], end: tuple[int, int], limits: tuple[int, bool]
    ) -> None:
        bounds = known.bounds
        bytes_max, whole = limits
        inner = end[1] - bounds[end[0]]
        size = end[1] - begin[1]
        if inner:
            assert known.encoding == Encoding.BYTES
            assert not whole
            assert inner % RAW_STEP_BYTES == 0
            assert inner < len(known.records[end[0]])
        if begin[1] == bounds[-1]:
            assert size == 0
            return
        assert size > 0
        if known.encoding == Encoding.JSON or whole:
            assert size <= bytes_max or end[0] == begin[0] + 1
        else:
            assert size <= max(bytes_max, RAW_STEP_BYTES)


AgainstLists.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestAgainstLists = AgainstLists.TestCase


def test_a_wrong_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is worth something: a machine that cuts at other steps does not pass it."""
    monkeypatch.setattr(read_plan, "RAW_STEP_BYTES", RAW_STEP_BYTES // 3)
    model = AgainstLists()
    model.known["docs/a"] = Naive(Encoding.BYTES, [b"x" * 150_000])
    group = group_of("docs/a", GROUPS)
    model.world.apply(
        group, Create("docs/a", 1, "type/0", Encoding.BYTES, batch=raw_batch(b"x" * 150_000))
    )
    page = model.world.read(model.stream("docs/a"), Want(0, 0, 30_000))
    assert not isinstance(page, ReadRefused)
    with pytest.raises(AssertionError):
        model.check_end(model.known["docs/a"], page[1], page[2], (30_000, False))
