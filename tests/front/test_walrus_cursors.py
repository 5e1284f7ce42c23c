"""The shared cursors of the text protocol: other callers cannot name, list or move them. Those of
an earlier release are adopted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from front_world import World, play
from worlds.transactions import Planter

from polynya.base.errors import Unavailable
from polynya.base.levels import INTERNAL_LEVEL
from polynya.base.names import BadName, canonical_name, group_of
from polynya.cli.storage.recover import Selection
from polynya.front.text.cursors import json_batch
from polynya.front.text.protocol import TextCommand
from polynya.front.text.topics import AT_ONCE_BYTES, NodeView, Topics
from polynya.local.api import Refusal, StreamInfo
from polynya.stream.command import Command, level_for
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.subscriptions.globs import compile_pattern
from polynya.stream.features.tables.watches import covers
from polynya.stream.parts import Encoding
from polynya.stream.replies import Done, Reply
from polynya.wire.headers import RECORDS

JSON = "application/json"
OLD, NEW = "walrus-cursors/default/logs", "_walrus/default/logs"


async def segments(name: str) -> None:
    return None


def topics_of(world: World) -> Topics:
    """The topics, as one more node has them."""
    return Topics(world.service, NodeView(1, lambda name: 1, lambda: 1, lambda: [1], segments))


async def get(topics: Topics) -> str:
    return await topics.run(TextCommand("GET", "logs", ""))


async def has(world: World, name: str) -> StreamInfo | None:
    info = await world.service.info(name)
    return None if isinstance(info, Refusal) else info


async def call(world: World, command: Any) -> Reply:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.service.propose(command.name, command, future.set_result)
    reply: Reply = await future
    return reply


async def topic_of_the_last_release(world: World, read: int) -> None:
    """A topic with six messages, of which its readers got some."""
    await world.put("logs", JSON)
    for number in range(6):
        await world.post("logs", b'"%d"' % number, JSON)
    if read:
        info = await has(world, "default/logs")
        assert info is not None
        await call(world, Create(OLD, 0, JSON, Encoding.JSON))
        position = f"{info.uid:020d}_{read:016d}_{4 * read:016d}"
        await call(world, Append(OLD, 0, JSON, json_batch(b"0"), stream_seq=position))


def test_a_message_of_a_large_page_is_found_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record 98,000 of a batch took the loop for 0.43 seconds."""
    in_threads: list[Callable[..., object]] = []

    async def to_thread(work: Callable[..., object], *given: object) -> object:
        in_threads.append(work)
        return work(*given)

    monkeypatch.setattr("polynya.front.text.topics.asyncio.to_thread", to_thread)

    async def story(world: World) -> None:
        topics = topics_of(world)
        await world.put("logs", JSON)
        await world.post("logs", b'"small"', JSON, record_key="k")
        records = b",".join([b'{"key":"k","value":"%b"}' % (b"x" * 900)] * 99)
        sent = await world.post("logs", b"[" + records + b"]", RECORDS)
        assert sent.status == 204
        await world.post("logs", b'"' + b"y" * AT_ONCE_BYTES + b'"', JSON)
        assert await get(topics) == "OK small"
        assert len(in_threads) == 1, "that built the large batch"
        for _ in range(99):
            assert await get(topics) == "OK " + "x" * 900
        assert await get(topics) == "OK " + "y" * AT_ONCE_BYTES
        assert len(in_threads) == 101

    play(story)


def test_readers_get_no_message_of_an_aborted_transaction() -> None:
    async def story(world: World) -> None:
        topics = topics_of(world)
        await world.put("logs", JSON)
        machine = world.service.local.machines[group_of("default/logs", 2)]

        async def send(command: Command, name: str) -> Reply:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            world.service.propose(name, command, future.set_result)
            reply: Reply = await future
            return reply

        made = Planter("default/logs", lambda: machine.directory.streams["default/logs"], send)
        made.now_ms = world.service.now_ms()
        for number in range(20):
            await made.write(b'"aborted"', producer=107)
            await made.write(b'"%d"' % number, producer=5) if number > 17 else None
        assert await get(topics) == "EMPTY", "they are open"
        await made.end(107)
        await made.end(5)
        assert [await get(topics) for _ in range(3)] == ["OK 18", "OK 19", "EMPTY"]
        await world.post("logs", b'"last"', JSON)
        assert await get(topics) == "OK last"

    play(story)


def test_a_reader_goes_on_where_the_last_release_left_it() -> None:
    async def story(world: World) -> None:
        await topic_of_the_last_release(world, read=2)
        assert await get(topics_of(world)) == "OK 2"
        assert await has(world, OLD) is None
        moved = await has(world, NEW)
        assert moved is not None and moved.stream_seq is not None
        assert [await get(topics_of(world)) for _ in range(2)] == ["OK 3", "OK 4"]
        # a client of the last release, or somebody who guesses, has no say any more
        await call(world, Create(OLD, 0, JSON, Encoding.JSON))
        assert [await get(topics_of(world)) for _ in range(2)] == ["OK 5", "EMPTY"]

    play(story)


def test_readers_that_take_over_at_once_get_each_message_once() -> None:
    async def story(world: World) -> None:
        await topic_of_the_last_release(world, read=1)
        got = await asyncio.gather(*(get(topics_of(world)) for _ in range(6)))
        assert sorted(got) == ["EMPTY", *(f"OK {number}" for number in range(1, 6))]

    play(story)


def test_a_group_with_nodes_of_the_last_release_keeps_the_old_cursor() -> None:
    async def story(world: World) -> None:
        await topic_of_the_last_release(world, read=2)
        propose = world.service.proposals.propose_to

        def as_before(group: int, command: Command, done: Done) -> None:
            if level_for(command) >= INTERNAL_LEVEL:
                done(Unavailable("this command needs a newer feature level"))
            else:
                propose(group, command, done)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.service.proposals, "propose_to", as_before)
            assert await get(topics_of(world)) == "OK 2"
            assert await has(world, NEW) is None and await has(world, OLD) is not None
        assert await get(topics_of(world)) == "OK 3"
        assert await has(world, OLD) is None

    play(story)


@pytest.mark.parametrize("name", [NEW, OLD])
def test_clients_neither_see_nor_reach_a_cursor(name: str) -> None:
    async def story(world: World) -> None:
        await topic_of_the_last_release(world, read=0)
        await call(world, Create(name, 0, JSON, Encoding.JSON))
        listed = await world.ask("GET", "/v1/streams")
        assert b"logs" in listed.body and b"walrus" not in listed.body
        for prefix in (name, name.partition("/")[0]):
            answer = await world.ask("GET", f"/v1/streams?prefix={prefix}")
            assert b'"streams":[]' in answer.body.replace(b" ", b"")
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
            answer = await world.ask(method, f"/v1/stream/{name}", b"1", content_type=JSON)
            assert answer.status == 400, method
        with pytest.raises(BadName, match="reserved"):
            canonical_name(name)
        assert not Selection(frozenset(), "", None).has(name), "no recovery of a whole backup"
        assert await has(world, name) is not None

    play(story)


def test_no_pattern_and_no_table_has_a_cursor() -> None:
    assert [compile_pattern(each)("default/logs") for each in ("**", "*")] == [True, True]
    for pattern in ("**", "_walrus/**", "*/*/logs"):
        assert not compile_pattern(pattern)(NEW)
    assert covers("default/logs", [""]) and not covers(NEW, ["", "_walrus/"])
