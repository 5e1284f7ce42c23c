"""Appends on a condition to streams of each profile, in each form, on the core that has the stream
and on another one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from stories.service import node_story, story, story_on_one_and_two_cores
from worlds.service import Code, Node, Producer, World, json_batch, name_in

from polynya.base.futures import settle
from polynya.stream.features.appends.commands import Append, AppendIf
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.parts import Batch, SegmentLimits
from polynya.stream.replies import Reply
from polynya.wire.record_fields import RecordFields, described

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1
KIND = "application/json"
PROFILES: dict[str, dict[str, Any]] = {
    "replicated": {},
    "leased": {"segments": SegmentLimits(2, 0)},  # the third record is of another segment
    "diskless": {"profile": Profile.DISKLESS},
}
FORMS = ("value", "batch", "records", "closing", "close")


def batch_of(form: str, now_ms: int) -> Batch | None:
    if form == "close":
        return None
    if form == "records":
        return described([b"7", b"8"], RecordFields(b"key", (), None), now_ms)
    return json_batch(b"7", b"8") if form == "batch" else json_batch(b"7")


def on_condition(world: World, name: str, form: str, record: int, **more: Any) -> AppendIf:
    now_ms = world.clock.ms
    batch = batch_of(form, now_ms)
    close = form in ("closing", "close")
    kind = "" if batch is None else KIND
    return AppendIf(name, now_ms, kind, batch, close=close, record=record, **more)


def bound(world: World, command: Append) -> asyncio.Future[Reply]:
    """Append through the bound appender, as HTTP does."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    world.service.open(command.name).append(command, partial(settle, future))
    return future


async def begin(world: World, name: str, profile: str) -> None:
    """Three records. A fork inherits two of them."""
    profile, _, fork = profile.partition(" ")
    source = f"{name}-source" if fork else name
    create = Create(source, world.clock.ms, KIND, 1, **PROFILES[profile])
    assert (await world.send(create)).code == Code.CREATED
    assert (await world.append(source, b"1", b"2", json=True)).code == Code.OK
    if fork:
        assert (await world.fork(name, source)).code == Code.CREATED
    assert (await world.append(name, b"3", json=True)).code == Code.OK


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", [*PROFILES, "replicated fork", "diskless fork"])
@node_story
async def test_every_append_is_judged_wherever_it_comes_in(
    node: Node, profile: str, form: str
) -> None:
    for name in (HERE, THERE):
        await begin(node.worlds[0], name, profile)
        for world in node.worlds:
            for way in (bound, World.send):
                for record in (0, 2, 4):
                    reply = await way(world, on_condition(world, name, form, record))
                    assert (reply.code, reply.record) == (Code.PRECONDITION, 3)
        world = node.worlds[1]
        assert await world.read(name) == b"1,2,3,"
        producer = Producer("p", 0, 0)
        command = on_condition(world, name, form, 3, producer=producer)
        done = await bound(world, command)
        tail = {"close": 3, "value": 4, "closing": 4}.get(form, 5)
        assert (done.code, done.record, done.closed) == (Code.OK, tail, "clos" in form)
        again = await bound(node.worlds[0], command)
        assert (again.code, again.record) == (Code.DUPLICATE, tail)
        late = await bound(world, on_condition(world, name, form, 3))
        if form == "close":
            assert late.code == Code.ALREADY_CLOSED
        else:
            assert late.code == (Code.CLOSED if "clos" in form else Code.PRECONDITION)
        assert (await world.read(name)).startswith(b"1,2,3,")


@pytest.mark.parametrize("profile", [*PROFILES, "replicated fork", "diskless fork"])
@node_story
async def test_of_twenty_at_once_on_two_cores_one_wins(node: Node, profile: str) -> None:
    for name in (HERE, THERE):
        await begin(node.worlds[0], name, profile)
        for round_ in range(3):
            commands = [
                (world, on_condition(world, name, "value", 3 + round_))
                for world in node.worlds
                for _ in range(10)
            ]
            replies = await asyncio.gather(*(bound(*each) for each in commands))
            codes = sorted(reply.code for reply in replies)
            assert codes == [Code.OK] + [Code.PRECONDITION] * 19
            assert {reply.record for reply in replies} == {4 + round_}
        assert await node.worlds[0].read(name) == b"1,2,3,7,7,7,"


@story
async def test_twenty_of_one_pack_are_judged_one_after_the_other(world: World) -> None:
    await begin(world, HERE, "diskless")
    before = world.writer.counters.packs
    numbers = [record for record in (3, 3, 5, 4, 3, 9, 5) for _ in range(3)]
    sent = [bound(world, on_condition(world, HERE, "value", number)) for number in numbers]
    sent.append(bound(world, world.append_of(HERE, b"9", json=True)))
    replies = [await each for each in sent]
    assert world.writer.counters.packs == before + 1
    # 3 wins at once, then 4; 5 came too early, and once more behind them
    won = [at for at, reply in enumerate(replies) if reply.code == Code.OK]
    assert won == [0, 9, 18, 21]
    assert await world.read(HERE) == b"1,2,3,7,7,7,9,"
    await world.snapshot()
    world.kill()
    assert await world.read(HERE) == b"1,2,3,7,7,7,9,"


@story_on_one_and_two_cores
async def test_an_evicted_stream_returns_to_judge_a_condition(world: World) -> None:
    await begin(world, HERE, "replicated")
    await world.evict()
    assert HERE in world.evicted
    stale = bound(world, on_condition(world, HERE, "value", 2))
    fits = bound(world, on_condition(world, HERE, "value", 3))
    assert ((await stale).code, (await fits).code) == (Code.PRECONDITION, Code.OK)
    assert await world.read(HERE) == b"1,2,3,7,"


@story
async def test_conditions_are_in_the_journal_and_hold_after_a_kill(world: World) -> None:
    await begin(world, HERE, "replicated")
    sent = [on_condition(world, HERE, "batch", record) for record in (3, 3, 5, 3)]
    replies = await asyncio.gather(*(bound(world, each) for each in sent))
    assert [reply.code for reply in replies] == [
        Code.OK,
        Code.PRECONDITION,
        Code.OK,
        Code.PRECONDITION,
    ], "of one entry of the log"
    before = world.state()
    assert await world.kill().read(HERE) == b"1,2,3,7,8,7,8,"
    assert world.state() == before
    await world.snapshot()
    await world.append(HERE, b"9", json=True)
    assert await world.kill().read(HERE) == b"1,2,3,7,8,7,8,9,", "hot batches are read by position"


@story
async def test_a_change_of_the_profile_loses_no_condition(world: World) -> None:
    await begin(world, HERE, "replicated")
    change = world.send(SetProfile(HERE, Profile.DISKLESS, world.clock.ms))
    sent = [bound(world, on_condition(world, HERE, "value", 3)) for _ in range(5)]
    await change
    sent += [bound(world, on_condition(world, HERE, "value", 3)) for _ in range(5)]
    codes = sorted([(await each).code for each in sent])
    assert codes == [Code.OK] + [Code.PRECONDITION] * 9
    back = world.send(SetProfile(HERE, Profile.REPLICATED, world.clock.ms))
    sent = [bound(world, on_condition(world, HERE, "value", 4)) for _ in range(5)]
    await back
    codes = sorted([(await each).code for each in sent])
    assert codes == [Code.OK] + [Code.PRECONDITION] * 4
    assert await world.read(HERE) == b"1,2,3,7,7,"
