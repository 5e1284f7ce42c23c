"""Numbers that a new history jumped over, and the small gaps that removed records leave: whatever
lies around them is read, flushed, merged, trimmed and forked as if they were not there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from worlds.stream import World, json_batch, raw_batch

from polynya.base.names import group_of
from polynya.cold.planner import cut_runs
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices, ReplaceSlices
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.features.tables.rules import lag_of
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import AT_BYTE, ReadRefused, Want
from polynya.stream.replies import Code
from polynya.stream.state import index, record_gaps
from polynya.stream.state.model import Stream
from polynya.stream.state.record_gaps import JUMP

NAME = "docs/a"
SKIP = 3  # numbers of a small gap
STEPS = st.lists(
    st.one_of(st.integers(1, 4), st.sampled_from(["jump", "skip", "flush", "merge", "whole"])),
    max_size=14,
)


class Holey:
    """A stream of JSON records, some flushed, with holes; and where each record is."""

    def __init__(self, steps: list[int | str]) -> None:
        self.world = World(2)
        self.group = group_of(NAME, 2)
        self.world.apply(self.group, Create(NAME, 1, "application/json", Encoding.JSON))
        self.records: list[tuple[int, int, bytes]] = []  # number, byte, record
        self.cuts: list[tuple[int, int]] = []  # of each wide jump: records, next record
        for step in steps:
            if step == "jump":
                self.cuts.append((len(self.records), self.stream.next_record))
                self.world.jump(self.group)
            elif step == "skip":
                self.world.jump(self.group, SKIP)
            elif step == "flush":
                self.flush()
            elif step == "whole":
                self.flush_whole()
            elif step == "merge":
                self.merge()
            else:
                self.append(int(step))

    @property
    def stream(self) -> Stream:
        return self.world.machines[self.group].directory.streams[NAME]

    def append(self, count: int) -> None:
        texts = [b'"%d"' % (len(self.records) + number) for number in range(count)]
        record, byte = self.stream.next_record, self.stream.next_byte
        assert (
            self.world.apply(
                self.group, Append(NAME, 2, "application/json", json_batch(*texts))
            ).code
            == Code.OK
        )
        for text in texts:
            self.records.append((record, byte, text))
            record, byte = record + 1, byte + len(text) + 1

    def flush(self) -> None:
        """Flush as the flusher does: gapless runs, one after the other."""
        for run in cut_runs(self.stream.hot, 1 << 20) if self.stream.hot else ():
            cold = self.world.slice_of(self.stream, len(run), f"p{self.world.position}")
            reply = self.world.apply(
                self.group, PublishSlices(cold.pack, 1, 1, [(self.stream.uid, cold)])
            )
            assert reply.detail == [0]

    def flush_whole(self) -> None:
        """Publish one slice of all hot batches up to a wide gap: small gaps lie inside its span."""
        hot = self.stream.hot
        if hot:
            count = record_gaps.run_end(hot, 0, len(hot))
            cold = self.world.slice_of(self.stream, count, f"p{self.world.position}")
            command = PublishSlices(cold.pack, 1, 1, [(self.stream.uid, cold)])
            assert self.world.apply(self.group, command).detail == [0]
            wrong = structs.replace(cold, pack="q", missing_records=cold.missing_records + 1)
            command = PublishSlices("q", 1, 1, [(self.stream.uid, wrong)])
            assert self.world.apply(self.group, command).detail == []

    def merge(self) -> None:
        """All entries before the first wide gap become one."""
        entries = self.world.machines[self.group].packs.index_of(self.stream)[:]
        end = next(
            (
                at
                for at in range(1, len(entries))
                if entries[at].record - entries[at - 1].record - entries[at - 1].records >= JUMP
            ),
            len(entries),
        )
        if end > 1:
            merged = self.world.merged(entries[:end], f"m{self.world.position}")
            command = ReplaceSlices(merged.pack, 1, 1, [(self.stream.uid, merged)])
            assert self.world.apply(self.group, command).detail == [0]
            assert self.world.apply(self.group, command).detail == [0]

    def read(self, record: int, byte: int = 0, bytes_max: int = 1 << 20) -> list[bytes]:
        """Read all from there on, page by page. A page ends behind its last record, or behind a
        small gap that follows."""
        found, at, pages = b"", (record, byte), 0
        behind = {text: (number + 1, begin + len(text) + 1) for number, begin, text in self.records}
        tail = (self.stream.next_record, self.stream.next_byte)
        while True:
            page = self.world.read(self.stream, Want(*at, bytes_max, True))
            assert not isinstance(page, ReadRefused)
            found += page[0]
            if page[0]:
                last = behind[page[0].split(b",")[-2]]
                assert page[2][1] == last[1]
                following = [number for number, *_ in self.records if number >= last[0]]
                assert last[0] <= page[2][0] <= min([*following, self.stream.next_record])
                assert page[2][0] - last[0] < JUMP
            if page[2] == tail:
                return found.split(b",")[:-1]
            assert page[2] > at or record == AT_BYTE
            at, pages = page[2], pages + 1
            assert pages < 200


@given(STEPS, st.integers(1, 40), st.data())
def test_every_position_reads_what_lies_behind_it(
    steps: list[int | str], bytes_max: int, data: st.DataObject
) -> None:
    holey = Holey(steps)
    texts = [text for _, _, text in holey.records]
    assert holey.read(0, bytes_max=bytes_max) == texts
    edges = (
        [number for number, _, _ in holey.records]
        + [number + 1 for number, _, _ in holey.records]
        + [0, holey.stream.next_record]
    )
    at = max(
        0,
        data.draw(st.sampled_from(edges))
        + data.draw(st.sampled_from([0, 0, 0, 1, 2, JUMP // 2, -1])),
    )
    if at <= holey.stream.next_record:
        assert holey.read(at, bytes_max=bytes_max) == [
            text for number, _, text in holey.records if number >= at
        ]
    if holey.records:
        _, byte, _ = holey.records[data.draw(st.integers(0, len(holey.records) - 1))]
        assert holey.read(AT_BYTE, byte, bytes_max) == [
            text for _, begin, text in holey.records if begin >= byte
        ]


@given(STEPS, st.data())
def test_a_trim_into_a_hole_is_one_to_its_end(steps: list[int | str], data: st.DataObject) -> None:
    holey = Holey(steps)
    edges = [0, *(number + 1 for number, _, _ in holey.records)]
    at = data.draw(st.sampled_from(edges)) + data.draw(st.sampled_from([0, 1, 2, JUMP // 2]))
    kept = [each for each in holey.records if each[0] >= at]
    byte = kept[0][1] if kept else holey.stream.next_byte
    reply = holey.world.apply(holey.group, Trim([(holey.stream.uid, at, byte)], 9))
    if reply.detail[0] is not None:
        assert holey.read(holey.stream.first_record) == [text for _, _, text in kept]
    else:
        assert at > holey.stream.next_record


@given(STEPS)
def test_what_is_missing_is_counted(steps: list[int | str]) -> None:
    holey = Holey(steps)
    assert holey.stream.next_record - record_gaps.missing(holey.stream, 0) == len(holey.records)
    behind = [
        at
        for at in range(1, index.count(holey.stream.cold))
        if at in record_gaps.entries_behind(holey.stream.cold or b"")
    ]
    entries = holey.world.machines[holey.group].packs.index_of(holey.stream)[:]
    assert behind == [
        at
        for at in range(1, len(entries))
        if entries[at].record > entries[at - 1].record + entries[at - 1].records
    ]


@given(STEPS, st.data())
def test_a_fork_has_what_lies_before_it(steps: list[int | str], data: st.DataObject) -> None:
    holey = Holey(steps)
    edges = [0, *(number + 1 for number, _, _ in holey.records)]
    at = min(
        data.draw(st.sampled_from(edges)) + data.draw(st.sampled_from([0, 1, 2])),
        holey.stream.next_record,
    )
    later = [each for each in holey.records if each[0] >= at]
    byte = later[0][1] if later else holey.stream.next_byte
    pin = PinSource(NAME, "a" * 32, "docs/b", 5, record=at, byte=byte)
    pinned = holey.world.apply(holey.group, pin)
    if pinned.code == Code.NOT_YET:  # the coordinator reads the boundary
        page = holey.world.read(holey.stream, Want(at, byte, 1))
        assert not isinstance(page, ReadRefused)
        resolved = structs.replace(pin, record=page[1][0], byte=page[1][1], resolved=True)
        pinned = holey.world.apply(holey.group, resolved)
    assert pinned.code == Code.OK
    until = (pinned.detail[0], pinned.detail[1])
    assert until[1] == byte
    found, position = b"", (0, 0)
    while position != until:
        page = holey.world.read(holey.stream, Want(*position, 1 << 20, True, until))
        assert not isinstance(page, ReadRefused)
        found, position = found + page[0], page[2]
    assert found.split(b",")[:-1] == [text for _, begin, text in holey.records if begin < byte]


def test_a_table_says_nothing_of_numbers_that_were_jumped_over() -> None:
    holey = Holey([2, "flush"])
    claim = ClaimRanges(7, 1, 0, "docs/", [], 1 << 20, True)
    assert [cold.records for cold in holey.world.apply(holey.group, claim).detail[0].slices] == [2]
    holey.world.jump(holey.group)
    machine = holey.world.machines[holey.group]
    assert [(lag.records, lag.skipped) for lag in lag_of(machine, 7, "docs/", [], 1)][-1] == (0, 0)
    holey.append(3)
    assert [(lag.records, lag.skipped) for lag in lag_of(machine, 7, "docs/", [], 1)][-1] == (3, 0)
    holey.flush()
    again = holey.world.apply(holey.group, ClaimRanges(7, 2, 1, "docs/", [], 1 << 20, True)).detail[
        0
    ]
    assert [cold.records for cold in again.slices] == [3]
    assert (holey.stream.tables or {})[7].skipping == 0


def test_a_fork_in_a_hole_begins_behind_it() -> None:
    holey = Holey([2, "flush", "jump", 3])
    pinned = holey.world.apply(
        holey.group, PinSource(NAME, "a" * 32, "docs/b", 5, record=JUMP // 2, byte=0)
    )
    assert pinned.detail[:2] == [holey.records[2][0], holey.records[2][1]]


def test_a_raw_page_does_not_cross_a_hole() -> None:
    world, group = World(2), group_of(NAME, 2)
    world.apply(group, Create(NAME, 1, "text/plain", Encoding.BYTES))
    world.apply(group, Append(NAME, 2, "text/plain", raw_batch(b"before")))
    world.jump(group)
    stream = world.machines[group].directory.streams[NAME]
    world.apply(group, Append(NAME, 2, "text/plain", raw_batch(b"behind")))
    assert world.read(stream, Want(0, 0, 100)) == (b"before", (0, 0), (1, 6))
    assert world.read(stream, Want(1, 6, 100)) == (b"behind", (JUMP + 1, 6), (JUMP + 2, 12))


@given(STEPS)
def test_the_end_of_an_earlier_history_is_behind_its_records_and_no_later(
    steps: list[int | str],
) -> None:
    holey = Holey(steps)
    stream = holey.stream
    assert record_gaps.history_end(stream, stream.cold, 0) == stream.next_record
    for restores, (count, tail) in enumerate(reversed(holey.cuts), 1):
        end = record_gaps.history_end(stream, stream.cold, restores)
        before = holey.records[:count]
        assert (before[-1][0] + 1 if before else 0) <= end <= tail
    younger = len(holey.cuts) + 1
    assert record_gaps.history_end(stream, stream.cold, younger) == stream.next_record
