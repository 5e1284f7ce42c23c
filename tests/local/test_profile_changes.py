"""Changes of the profile of streams that are written meanwhile: appends are held, keep their order,
and are there once."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from polling import wait_for
from stories.service import story, story_on_one_and_two_cores
from worlds.service import Code, World, name_in

from polynya.base.errors import Unavailable
from polynya.base.futures import settle
from polynya.local import profile_changes
from polynya.local.api import StreamInfo
from polynya.local.profile_changes import CHANGE_MS_MAX
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.parts import Producer
from polynya.stream.replies import Reply

A = "test/a"
THERE = name_in(1)  # of core 1, if there is one


def change(world: World, name: str, profile: int) -> asyncio.Future[Reply]:
    return world.send(SetProfile(name, profile, world.clock.ms))


def bound(world: World, name: str, *records: bytes) -> asyncio.Future[Reply]:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    world.service.open(name).append(world.append_of(name, *records), partial(settle, future))
    return future


async def begun(world: World, name: str) -> asyncio.Future[Reply]:
    """A change to diskless that waits, because nothing is flushed."""
    world.local.profiles.flush_soon = lambda name: None
    await world.create(name)
    await world.append(name, b"a")
    changed = change(world, name, Profile.DISKLESS)
    await world.engine.core.drain()
    assert not changed.done()
    return changed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append is held for longer than a change takes on any machine."""
    monkeypatch.setattr(profile_changes, "HOLD_SECONDS", 60.0)


@story_on_one_and_two_cores
async def test_a_stream_changes_both_ways_while_it_is_written(world: World) -> None:
    await world.create(THERE)
    sent: list[bytes] = []
    codes: list[int] = []
    stopping = False

    async def write() -> None:
        """Several appends at a time, as a connection does that pipelines them."""
        to = world.service.open(THERE).append
        while not stopping:
            futures = []
            for _ in range(3):
                sent.append(b"%d;" % len(sent))
                future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
                to(world.append_of(THERE, sent[-1]), partial(settle, future))
                futures.append(future)
            codes.extend([(await future).code for future in futures])

    writing = asyncio.create_task(write())
    for number in range(6):
        written = len(codes)
        await wait_for(lambda: len(codes) > written + 6, what="appends under the profile")  # noqa: B023
        wanted = (Profile.DISKLESS, Profile.REPLICATED)[number % 2]
        reply = await change(world, THERE, wanted)
        assert (reply.code, list(reply.detail)) == (Code.OK, [wanted, number + 2, False])
        info = await world.info(THERE)
        assert isinstance(info, StreamInfo) and info.profile == wanted
    stopping = True
    await writing
    assert set(codes) == {Code.OK} and len(codes) > 20
    assert await world.read(THERE) == b"".join(sent)
    assert world.writer.counters.appends, "some went to the writer"


@story
async def test_appends_wait_for_the_seal_and_go_the_other_way_then(world: World) -> None:
    changed = await begun(world, A)
    sent = [bound(world, A, b"b"), world.send(world.append_of(A, b"c"))]
    await world.engine.core.drain()
    assert not any(each.done() for each in sent)
    await world.flusher.flush_now(A)
    reply = await changed
    assert (reply.code, reply.detail) == (Code.OK, (Profile.DISKLESS, 2, False))
    assert [(await each).code for each in sent] == [Code.OK, Code.OK]
    assert await world.read(A) == b"abc"
    assert world.hot_bytes == 0 and world.writer.counters.appends == 2


@story
async def test_a_change_that_takes_too_long_is_taken_back(world: World) -> None:
    changed, again = await begun(world, A), change(world, A, Profile.DISKLESS)
    held = bound(world, A, b"b")
    world.clock.ms += CHANGE_MS_MAX - 1
    world.local.sweep()
    await world.engine.core.drain()
    assert not changed.done() and not held.done()
    world.clock.ms += 1
    world.local.sweep()
    for each in (changed, again):
        reply = await each
        assert (reply.code, reply.detail) == (Code.NOT_YET, (Profile.REPLICATED, 1, False))
    assert (await held).code == Code.OK
    assert await world.read(A) == b"ab" and not world.writer.counters.appends


@story
async def test_an_append_is_held_for_a_bounded_time_and_number(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_changes, "HOLD_SECONDS", 0.05)
        patch.setattr(profile_changes, "PROFILE_WAITING_BYTES_MAX", 1100)
        changed = await begun(world, A)
        held = [bound(world, A, b"b") for _ in range(3)]
        with pytest.raises(Unavailable, match="too many appends wait"):
            await held[2]
        for each in held[:2]:
            with pytest.raises(Unavailable, match="changes; retry"):
                await each
    assert await world.read(A) == b"a"
    await world.flusher.flush_now(A)
    assert (await changed).code == Code.OK
    assert (await world.append(A, b"b")).code == Code.OK


@pytest.mark.parametrize("sealed", [False, True])
@story
async def test_who_leads_after_a_crash_ends_the_change(world: World, sealed: bool) -> None:
    changed = await begun(world, A)
    held = bound(world, A, b"lost")
    world.kill()
    assert not held.done() and not changed.done()
    producer = Producer("p", 0, 0)
    world.local.profiles.flush_soon = lambda name: None
    waits = world.send(world.append_of(A, b"b", producer=producer))
    await world.engine.core.drain()
    assert not waits.done(), "the profile still changes"
    if sealed:
        await world.flusher.flush_now(A)
    else:
        world.clock.ms += CHANGE_MS_MAX
        world.local.sweep()
    assert (await waits).code == Code.OK
    info = await world.info(A)
    assert isinstance(info, StreamInfo) and info.profile == (
        Profile.DISKLESS if sealed else Profile.REPLICATED
    )
    assert await world.read(A) == b"ab"


@story
async def test_a_stream_that_ends_meanwhile_ends_the_change(world: World) -> None:
    changed = await begun(world, A)
    held = bound(world, A, b"b")
    await world.send(Delete(A, world.clock.ms))
    assert (await changed).code == Code.NOT_FOUND
    assert (await held).code == Code.NOT_FOUND
    assert not world.local.profiles.changes
    assert (await change(world, A, Profile.DISKLESS)).code == Code.NOT_FOUND
    assert not world.local.profiles.changes


@story
async def test_an_evicted_stream_comes_back_to_change(world: World) -> None:
    await world.create(A)
    await world.append(A, b"a")
    assert await world.evict() == 1
    reply = await change(world, A, Profile.DISKLESS)
    assert (reply.code, reply.detail) == (Code.OK, (Profile.DISKLESS, 2, False))
    assert (await world.append(A, b"b")).code == Code.OK
    assert await world.evict() == 1
    assert (await world.append(A, b"c")).code == Code.OK
    assert await world.read(A) == b"abc"


@story
async def test_a_held_append_is_answered_once(world: World) -> None:
    outcomes: list[object] = []
    changed = await begun(world, A)
    for name in (b"b", b"c"):
        world.service.propose(A, world.append_of(A, name), outcomes.append)
    await world.engine.core.drain()
    held = world.local.profiles.changes[A].appends
    assert len(held) == 2
    await world.flusher.flush_now(A)
    await changed
    assert not held, "the time for which it is held ends with the change"
    assert (await world.append(A, b"d")).code == Code.OK
    assert [outcome.code for outcome in outcomes if isinstance(outcome, Reply)] == [Code.OK] * 2
    assert await world.read(A) == b"abcd"
