"""Reads of diskless streams: the core that wants the records fetches them, and no other core sends
them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from stories.service import node_story, story
from worlds.packed_appends import PackedAppends
from worlds.service import Code, Listener, Node, World, name_in
from worlds.transactions import Planter

from polynya.cold import PackGone
from polynya.local.api import Page, Position, ReadQuery, StreamInfo
from polynya.local.reads.pieces import PlannedPage, PlannedSpans
from polynya.objectstore import MemoryStore
from polynya.routing import messages
from polynya.routing.answers import LocalAnswers
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.replies import Reply

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1
DISKLESS = {"profile": Profile.DISKLESS}


def writer_of(world: World) -> PackedAppends:
    return PackedAppends(world.service, world.store)


async def stored_and_hot(node: Node) -> None:
    """Create a replicated stream with a record in the object store and one in memory."""
    here, there = node.worlds
    await here.create(THERE)
    await here.append(THERE, b"one;")
    await there.flusher.flush_now()
    await here.append(THERE, b"two;")


def codes(replies: list[Reply]) -> list[int]:
    return [reply.code for reply in replies]


@story
async def test_a_diskless_stream_has_the_accepted_batches_alone(world: World) -> None:
    await world.create("test/a", **DISKLESS)
    writer = writer_of(world)
    found = await writer.append("test/a", b"one;", b"wrong;", b"two;", b"wrong;", refused={1, 3})
    assert codes(found) == [0, Code.CONTENT_TYPE, 0, Code.CONTENT_TYPE]
    await writer.append("test/a", b"three;")
    assert await world.read("test/a") == b"one;two;three;"
    for size in (1, 5, 9):
        assert await world.read("test/a", bytes_max=size) == b"one;two;three;"
    for record, expected in enumerate([b"one;two;three;", b"two;three;", b"three;"]):
        page = await world.page("test/a", record)
        assert b"".join(bytes(span.payload) for span in page.spans) == expected


@node_story
async def test_the_core_that_reads_fetches_the_slices_itself(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    writer = writer_of(here)
    for number in range(5):
        await writer.append(THERE, b"%d;" % number, b"no", b"%d!" % number, refused={1})
    expected = b"".join(b"%d;%d!" % (number, number) for number in range(5))
    assert await here.read(THERE) == expected
    assert await here.read(THERE, bytes_max=3) == expected
    assert there.reader.counters.misses == 0
    assert here.reader.counters.fetched_bytes > there.reader.counters.fetched_bytes == 0
    page = await here.page(THERE, 3)
    assert (page.begin_record, page.record, page.up_to_date) == (3, 10, True)
    assert [span.record for span in page.spans] == [3, 4, 5, 6, 7, 8, 9][: len(page.spans)]
    assert (await here.page(THERE, 10)).spans == []
    assert await there.read(THERE) == expected


@node_story
async def test_what_its_writer_stored_a_core_reads_from_its_memory(node: Node) -> None:
    here, _ = node.worlds
    await here.create(THERE, **DISKLESS)
    writer = PackedAppends(here.service, here.store, here.reader)
    await writer.append(THERE, b"one;", b"no", b"two;", refused={1})
    store = here.store
    assert isinstance(store, MemoryStore)
    store.objects.clear()
    assert await here.read(THERE) == b"one;two;"
    with pytest.raises(PackGone):
        await node.worlds[1].read(THERE)


@node_story
async def test_a_fork_reads_its_source_here_too(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    writer = writer_of(here)
    await writer.append(THERE, b"one;", b"two;", b"three;")
    assert (await here.fork(HERE, THERE, (2, 8))).code == Code.CREATED
    assert await here.read(HERE) == b"one;two;"
    assert there.reader.counters.misses == 0
    assert await there.read(HERE) == b"one;two;"


@node_story
async def test_a_replicated_stream_is_read_by_its_core(node: Node) -> None:
    here, there = node.worlds
    await stored_and_hot(node)
    assert await here.read(THERE) == b"one;two;"
    assert (here.reader.counters.misses, there.reader.counters.misses) == (0, 1)


@node_story
async def test_records_in_memory_come_with_the_plan(node: Node) -> None:
    """A stream may have both: the group commits slices before those in memory."""
    here, there = node.worlds
    await stored_and_hot(node)
    stream = there.local.machines[1].directory.streams[THERE]
    query = ReadQuery(THERE, Position.START, 0, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polynya.local.reads.pieces._stays", lambda each: each is stream)
        planned = await there.local.reads.read_for(1, query, far=True)
        assert isinstance(planned, PlannedPage)
        assert [bytes(span.payload) for span in planned.page.spans] == [b"two;"]
        assert await here.read(THERE) == b"one;two;"
        assert await here.read(THERE, bytes_max=5) == b"one;two;"
    assert (here.reader.counters.misses, there.reader.counters.misses) == (1, 0)


@pytest.mark.parametrize("early", [False, True])
@node_story
async def test_aborted_batches_of_far_slices_are_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """The plan names the transactions whose marks a slice may lack."""
    here, there = node.worlds
    await here.send(Create(THERE, here.clock.ms, "", Encoding.KAFKA))
    directory = there.local.machines[1].directory
    made = Planter(THERE, lambda: directory.streams[THERE], there.send)
    made.now_ms = there.clock.ms
    await made.write(b"0")
    await made.write(b"1", producer=107)
    await made.write(b"2", producer=5)
    if early:
        await there.flusher.flush_now(whole=True)
    await made.end(107)
    await made.end(5)
    await there.flusher.flush_now()
    await made.write(b"5")
    await made.write(b"6", producer=107)
    await made.end(107)
    assert (await here.fork(HERE, THERE)).code == Code.CREATED
    monkeypatch.setattr("polynya.local.reads.pieces._stays", lambda each: True)
    for name in (THERE, HERE):
        page = await here.page(name)
        assert [(each.record, each.flags) for each in page.spans] == [(0, 0), (2, 1), (5, 0)]
        assert (page.record, page.up_to_date) == (8, True)
        raw = await here.page(name, raw=True)
        flags = [each.flags for each in raw.spans]
        assert flags in ([0, 5, 1, 3, 3, 0, 5, 3], [0, 5, 1, 3, 0, 5, 3]), "markers may be joined"
    assert there.reader.counters.misses == 0


@node_story
async def test_a_sequential_reader_fetches_the_next_page_ahead(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    writer = writer_of(here)
    for number in range(4):
        await writer.append(THERE, b"%d" % number * 100)
    page = await here.service.read(ReadQuery(THERE, 0, 0, 100, whole_records=True, sequential=True))
    assert isinstance(page, Page)
    assert page.record == 1
    assert len(here.reader._slices._fetching) == 1
    assert there.reader.counters.misses == 0


@node_story
async def test_an_older_core_gets_the_records(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    await writer_of(here).append(THERE, b"one;", b"two;")
    query = ReadQuery(THERE, Position.START, 0, 1 << 20)
    older = messages.encode([1, query])  # without `far`
    question = msgspec.msgpack.decode(older, type=messages.Query)
    page = await LocalAnswers(there.local, there.service.directory).read_for(question)
    assert isinstance(page, Page)
    assert b"".join(bytes(span.payload) for span in page.spans) == b"one;two;"
    stream = there.local.machines[1].directory.streams[THERE]
    source = messages.ReadUid(stream.uid, (0, 0), (2, 8), (100, True))
    answer = messages.encode(
        await LocalAnswers(there.local, there.service.directory).read_uid_for(source)
    )
    assert len(msgspec.msgpack.decode(answer)) == 2, "spans, and their end"
    known = messages.decode(messages.READ_UID, answer)
    assert isinstance(known, PlannedSpans)
    assert (known.end, known.pieces) == ((2, 8), [])


@node_story
async def test_a_slice_that_goes_before_it_is_fetched_is_planned_again(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    await writer_of(here).append(THERE, b"one;")
    plans = 0
    planned = there.local.reads.read_for

    async def stale_once(group: int, query: ReadQuery, *, far: bool) -> object:
        nonlocal plans
        plans += 1
        answer = await planned(group, query, far=far)
        if plans == 1:
            assert isinstance(answer, PlannedPage)
            (piece,) = answer.pieces
            assert isinstance(piece.slice, ColdSlice)
            piece.slice = msgspec.structs.replace(piece.slice, pack="gone")
        return answer

    there.local.reads.read_for = stale_once  # type: ignore[method-assign, assignment]
    assert await here.read(THERE) == b"one;"
    assert plans == 2


@node_story
async def test_live_readers_learn_of_a_commit_without_its_payload(node: Node) -> None:
    here, there = node.worlds
    await here.create(THERE, **DISKLESS)
    listener = Listener()
    info = await here.service.open(THERE).attach(listener)
    assert isinstance(info, StreamInfo)
    await writer_of(here).append(THERE, b"one;", b"no", b"two;", refused={1})
    while not (listener.events and listener.events[-1].record == 2):
        await node.settle()
        await here.info(THERE)
    assert listener.payload == b""
    listener.check_gap_free(0, 0)
    assert there.reader.counters.misses == 0


@story
async def test_a_page_of_many_small_slices_is_fetched_a_window_at_a_time(world: World) -> None:
    await world.create("test/a", **DISKLESS)
    writer = writer_of(world)
    for number in range(48):
        await writer.append("test/a", b"%d;" % number)
    waiting: list[asyncio.Future[None]] = []
    original = world.store.get_range

    async def gated(key: str, begin: int, size: int) -> bytes:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return await original(key, begin, size)

    world.store.get_range = gated  # type: ignore[method-assign]
    reading = asyncio.ensure_future(world.page("test/a"))
    rounds = 0
    while not reading.done():
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(waiting) <= 17
        rounds += bool(waiting)
        for each in waiting:
            each.set_result(None)
        waiting.clear()
    page = await reading
    assert b"".join(bytes(span.payload) for span in page.spans) == b"".join(
        b"%d;" % number for number in range(48)
    )
    assert rounds <= 5
