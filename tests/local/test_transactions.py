"""The records that readers get of planted transactions: open ones, committed ones and aborted ones, in memory, in
packs that were written before their ends and after, and in forks."""

from __future__ import annotations

import pytest
from stories.service import story
from worlds.service import World
from worlds.transactions import Planter

from polynya.local.api import Page, Position, ReadQuery, Trimmed, TrimQuery
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import ABORTED, TRANSACTIONAL, UNDECIDED, Encoding
from polynya.stream.replies import Code
from polynya.stream.state.model import ColdSlice, Stream
from polynya.wire.kafka.records import decoded_records

NAME = "kafka/t/0"
SEEN = [b"a", b"b", b"c", b"d", b"e"]  # by those that read rows


def stream_of(world: World, name: str = NAME) -> Stream:
    return world.local.machines[world.service.group_of(name)].directory.streams[name]


def entries_of(world: World, name: str = NAME) -> list[ColdSlice]:
    machine = world.local.machines[world.service.group_of(name)]
    return list(machine.packs.index_of(machine.directory.streams[name]))


async def planter(world: World) -> Planter:
    await world.send(Create(NAME, world.clock.ms, "application/json", Encoding.KAFKA))
    made = Planter(NAME, lambda: stream_of(world), world.send)
    made.now_ms = world.clock.ms
    return made


async def write_transactions(world: World, when: str = "") -> Planter:
    """Records 0 to 13: two aborted transactions of one producer, a committed one between them, and
    an open one. `when`: what of them is flushed."""
    made = await planter(world)
    await made.write(b"a")
    await made.write(b"x0", b"x1", producer=108)
    await made.write(b"b", producer=7)
    if when == "early":
        await world.flusher.flush_now(whole=True)
    await made.write(b"x2", producer=108)
    await made.write(b"c", producer=7)
    await made.end(108)
    await made.write(b"y", producer=108)
    await made.write(b"d", producer=7)
    await made.end(7)
    await made.end(108)
    await made.write(b"e")
    await made.write(b"open", producer=9)
    await made.write(b"behind")
    if when in ("late", "early"):
        await world.flusher.flush_now()
    elif when == "whole":
        await world.flusher.flush_now(whole=True)
    return made


async def values_of(world: World, name: str = NAME, **more: object) -> tuple[list[bytes], Page]:
    """The values that a reader gets, page by page, and the last page."""
    found: list[bytes] = []
    page = await world.page(name, **more)  # type: ignore[arg-type]
    while True:
        for span in page.spans:
            found += [each.value or b"" for each in decoded_records(span.payload, span.record)]
        if page.up_to_date:
            return found, page
        page = await world.page(name, page.record, page.byte, **more)  # type: ignore[arg-type]


WHEN = ["", "early", "late", "whole"]


@pytest.mark.parametrize("when", WHEN)
def test_rows_are_those_of_committed_transactions(when: str) -> None:
    @story
    async def test(world: World) -> None:
        await write_transactions(world, when)
        for bytes_max in (1, 1 << 20):
            found, page = await values_of(world, bytes_max=bytes_max)
            assert found == SEEN
            assert (page.record, page.up_to_date) == (12, True)
            assert not any(span.flags & 6 for span in page.spans)
        near = world.service.read_nowait(ReadQuery(NAME))
        if not when:
            assert isinstance(near, Page)
            assert [span.record for span in near.spans] == [0, 3, 5, 8, 11]
        inside = await world.page(NAME, 1, 0)
        assert inside.spans[0].record == 3, "a page that begins with an aborted batch"

    test()


@pytest.mark.parametrize("when", WHEN)
def test_raw_readers_get_all_batches_and_their_flags(when: str) -> None:
    @story
    async def test(world: World) -> None:
        await write_transactions(world, when)
        for more, end in (({"raw": True}, 12), ({"raw": True, "uncommitted": True}, 14)):
            flags: dict[int, int] = {}
            at = 0
            while at < end:
                page = await world.page(NAME, at, 0, bytes_max=1, **more)
                flags |= {span.record: span.flags for span in page.spans}
                at = page.record
            expected = {0: 0, 1: 5, 3: 1, 4: 5, 5: 1, 6: 3, 7: 5, 8: 1, 9: 3, 10: 3, 11: 0}
            assert flags == expected | ({12: 1, 13: 0} if end == 14 else {})

    test()


@story
async def test_a_row_stays_while_a_slice_lacks_the_marks(world: World) -> None:
    await write_transactions(world, "early")
    stream = stream_of(world)
    assert stream.kafka is not None
    entries = [(each.record, each.flags) for each in entries_of(world)]
    assert entries == [(0, 0), (1, TRANSACTIONAL | UNDECIDED), (4, 7)]
    assert len(stream.kafka.aborted) == 32, "that of the second transaction has gone"
    assert stream.hot is not None
    assert [batch.record for batch in stream.hot] == [12, 13], "what is open stays in memory"


@story
async def test_a_row_goes_with_the_last_batch_that_may_lack_its_mark(world: World) -> None:
    made = await planter(world)
    await made.write(b"x", producer=108)
    await made.end(108)
    stream = stream_of(world)
    assert stream.kafka is not None
    assert len(stream.kafka.aborted) == 32, "in memory: a slice may be under way"
    await world.flusher.flush_now()
    assert stream.kafka.aborted == b""
    assert [each.flags for each in entries_of(world)] == [7]
    assert (await values_of(world))[0] == []


@pytest.mark.parametrize("when", WHEN)
def test_forks_inherit_rows(when: str) -> None:
    @story
    async def test(world: World) -> None:
        await write_transactions(world, when)
        assert (await world.fork("kafka/t/1", NAME)).code == Code.CREATED
        await world.settle()
        found, page = await values_of(world, "kafka/t/1")
        assert (found, page.record) == (SEEN, 12)
        raw = await world.page("kafka/t/1", raw=True)
        assert [span.flags for span in raw.spans if span.flags & ABORTED] == [5, 5, 5]

    test()


@story
async def test_a_read_passes_over_eight_pages_of_aborted_batches(world: World) -> None:
    made = await planter(world)
    for number in range(20):
        await made.write(b"%d" % number, producer=108)
    await made.end(108)
    await made.write(b"seen")
    page = await world.page(NAME, bytes_max=1)
    assert (page.spans, page.begin_record, page.record, page.up_to_date) == ([], 7, 8, False)
    page = await world.page(NAME, page.record, page.byte, bytes_max=1)
    assert (page.spans, page.record) == ([], 16)
    page = await world.page(NAME, page.record, page.byte, bytes_max=1)
    assert [span.record for span in page.spans] == [21]
    at_byte = await world.page(NAME, Position.AT_BYTE, 0, bytes_max=1)
    assert (at_byte.spans, at_byte.record) == ([], 8)


@story
async def test_a_trim_is_exact_inside_an_aborted_transaction(world: World) -> None:
    await write_transactions(world)
    found = await world.service.trim(TrimQuery(NAME, 4))
    assert isinstance(found, Trimmed)
    assert found.record == 4


@pytest.mark.parametrize("when", WHEN)
@story
async def test_marks_and_rows_survive_a_crash_and_eviction(world: World, when: str) -> None:
    made = await write_transactions(world, when)
    await world.snapshot()
    await made.write(b"z", producer=109)
    await made.end(109)
    await made.end(9)
    world.kill()
    seen = [*SEEN, b"open", b"behind"]
    assert (await values_of(world))[0] == seen
    await world.snapshot()
    world.kill()
    assert (await values_of(world))[0] == seen
    assert await world.evict() == 1
    assert NAME in world.evicted
    assert (await values_of(world))[0] == seen
