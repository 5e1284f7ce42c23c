"""Appends to diskless streams through the service: the way to the writer of the core that took
them, and back when the profile is another."""

from __future__ import annotations

import asyncio
from functools import partial

from google_crc32c import value as crc32c
from polling import turns, wait_for
from stories.service import node_story, story, story_on_one_and_two_cores
from worlds.service import Code, Listener, Node, World, name_in

from polynya.base.futures import settle
from polynya.local.api import StreamInfo
from polynya.routing import diskless
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE, Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Reply

A, B = "test/a", "test/b"
THERE = name_in(1)  # of core 1


def bound(world: World, name: str, *records: bytes) -> asyncio.Future[Reply]:
    """Append through the bound appender, as HTTP does."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    world.service.open(name).append(world.append_of(name, *records), partial(settle, future))
    return future


async def create(world: World, name: str, **more: object) -> None:
    reply = await world.create(name, profile=Profile.DISKLESS, **more)
    assert reply.code == Code.CREATED


@story_on_one_and_two_cores
async def test_an_append_is_in_the_store_when_it_is_answered(world: World) -> None:
    for name in (A, B, THERE):
        await create(world, name)
        world.service.expect_diskless(name)
    first = await asyncio.gather(*(bound(world, name, b"1") for name in (A, B, THERE)))
    assert [(each.code, each.record, each.byte, each.first_record) for each in first] == [
        (Code.OK, 1, 1, 0)
    ] * 3
    second = await world.append(A, b"23")
    assert (second.code, second.record, second.byte) == (Code.OK, 2, 3)
    assert await world.read(A) == b"123"
    assert await world.read(THERE) == b"1"
    info = await world.info(A)
    assert isinstance(info, StreamInfo)
    assert info.profile == Profile.DISKLESS
    assert world.hot_bytes == 0
    assert world.reader.counters.misses == 0, "the writer keeps what it stored"
    assert world.writer.counters.appends == 4
    assert world.writer.counters.packs == 2


@story_on_one_and_two_cores
async def test_appends_that_are_sent_together_keep_their_order(world: World) -> None:
    await create(world, THERE)
    sent = [bound(world, THERE, b"%d" % number) for number in range(5)]
    await turns()  # the first ones are refused, or are to be
    sent += [world.send(world.append_of(THERE, b"%d" % number)) for number in range(5, 9)]
    assert {(await each).code for each in sent} == {Code.OK}
    assert await world.read(THERE) == b"012345678"


@story_on_one_and_two_cores
async def test_a_repeat_is_answered_as_before_and_refusals_reach_the_client(world: World) -> None:
    await create(world, THERE)
    producer = Producer("p", 0, 0)
    first = await world.append(THERE, b"1", producer=producer)
    again = await world.append(THERE, b"1", producer=producer)
    assert (first.code, again.code, again.record) == (Code.OK, Code.DUPLICATE, 1)
    gap = await world.append(THERE, b"3", producer=Producer("p", 0, 2))
    assert (gap.code, gap.expected_sequence) == (Code.PRODUCER_GAP, 1)
    other = await world.append(THERE, b"x", incarnation=12345)
    assert other.code == Code.INCARNATION
    closed = await world.append(THERE, b"4", close=True)
    assert (closed.code, closed.closed) == (Code.OK, True)
    assert (await world.append(THERE, b"5")).code == Code.CLOSED
    assert (await world.append("test/none", b"5")).code == Code.NOT_FOUND
    assert await world.read(THERE) == b"14"


@story_on_one_and_two_cores
async def test_a_stream_that_turns_replicated_takes_its_appends_in_order(world: World) -> None:
    await create(world, THERE)
    assert (await bound(world, THERE, b"0")).code == Code.OK
    sent = [bound(world, THERE, b"1")]
    changed = await world.send(SetProfile(THERE, Profile.REPLICATED, world.clock.ms), THERE)
    assert changed.code == Code.OK
    for number in range(2, 8):
        sent.append(bound(world, THERE, b"%d" % number))
        await turns(10)
    assert {(await each).code for each in sent} == {Code.OK}
    assert await world.read(THERE) == b"01234567"
    assert not world.service.proposals.expects_diskless(THERE)
    changed = await world.send(SetProfile(THERE, Profile.DISKLESS, world.clock.ms), THERE)
    assert changed.code == Code.OK


@story
async def test_a_first_batch_of_the_creation_is_flushed_before_the_next_append(
    world: World,
) -> None:
    create_of = world.create_of(A, profile=Profile.DISKLESS)
    batch = Batch(Encoding.BYTES, 1, b"0", crc32c(b"0"))
    await world.send(Create(A, create_of.now_ms, "text/plain", 0, batch=batch, profile=1))
    assert world.hot_bytes == 1
    assert (await bound(world, A, b"1")).code == Code.OK
    assert world.hot_bytes == 0
    assert await world.read(A) == b"01"


@story
async def test_an_evicted_stream_comes_back_for_a_commit(world: World) -> None:
    await create(world, A)
    await bound(world, A, b"1")
    assert await world.evict() == 1
    assert world.evicted == {A}
    assert (await bound(world, A, b"2")).code == Code.OK
    assert await world.read(A) == b"12"


@story
async def test_a_kafka_batch_is_stored_as_it_came(world: World) -> None:
    await world.send(
        Create(A, world.clock.ms, KAFKA_CONTENT_TYPE, Encoding.KAFKA, profile=Profile.DISKLESS)
    )
    payload = b"any three records"
    batch = Batch(Encoding.KAFKA, 3, payload, crc32c(payload), record_time_ms_max=7)
    produced = Produce(A, world.clock.ms, batch, Producer("5", 0, 0, 2, 1))
    replies = [await world.send(produced) for _ in range(2)]
    assert [(each.code, each.first_record) for each in replies] == [
        (Code.OK, 0),
        (Code.DUPLICATE, 0),
    ]
    page = await world.page(A)
    assert [
        (bytes(span.payload), span.records, span.record_time_ms_max) for span in page.spans
    ] == [(payload, 3, 7)]


@story
async def test_without_a_writer_an_append_is_refused(world: World) -> None:
    await create(world, A)
    world.service.proposals.take_diskless(diskless.NoWriter())
    future = bound(world, A, b"1")
    await asyncio.wait([future])
    assert "cold.backend" in str(future.exception())


@node_story
async def test_live_readers_hear_of_commits(node: Node) -> None:
    here, there = node.worlds
    listener = Listener()
    await create(here, THERE)
    await there.service.open(THERE).attach(listener)
    await bound(here, THERE, b"1")
    await wait_for(lambda: listener.events, what="the commit")
    assert [(event.record, event.byte) for event in listener.events] == [(1, 1)]
    assert (here.writer.counters.appends, there.writer.counters.appends) == (1, 0)
