"""Leases, cursors, forks, producers and incarnations are unchanged by a failover: the log decides
them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sim.cluster import Node, NotThere, World
from stories.cluster import A, led, stories
from worlds.service import json_batch
from worlds.subscriptions import Shell

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import StreamInfo
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding, Producer
from polynya.stream.replies import Code, Reply

JOB, POOL = "test/job", "wake/pool"
TAIL = "0000000000000001_0000000000000002"

story = stories(led)


class Workers:
    """A cluster whose nodes know subscriptions, asked at any of them, again as long as they have no
    leader."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shells: dict[int, Shell] = {}

    async def start(self) -> None:
        for node in self.world.alive():
            if node.number not in self.shells:
                made: Any = SimpleNamespace(service=node.engine.service, engine=node.engine)
                self.shells[node.number] = Shell(made)
                await self.shells[node.number].subscriptions.start()

    async def stop(self, number: int) -> None:
        await self.shells.pop(number).subscriptions.stop()

    async def ask(
        self, method: str, path: str, body: Any = None, token: str = ""
    ) -> tuple[int, Any]:
        for attempt in range(60):
            shell = self.shells[sorted(self.shells)[attempt % len(self.shells)]]
            with suppress(Unavailable, OutcomeUnknown):
                return await shell.ask(method, path, body, token)
            await asyncio.sleep(0.1)
        raise AssertionError(f"nobody answers {method} {path}")

    async def until(self, method: str, path: str, body: Any, status: int) -> Any:
        for _ in range(100):
            found, answer = await self.ask(method, path, body)
            if found == status:
                return answer
            await asyncio.sleep(0.1)
        raise AssertionError(f"{method} {path} is answered with {answer}")


async def write_json(node: Node, name: str, record: bytes = b"") -> Reply:
    service = node.engine.service
    if record:
        return await node.propose(
            name, Append(name, service.now_ms(), "application/json", json_batch(record))
        )
    return await node.propose(
        name, Create(name, service.now_ms(), "application/json", Encoding.JSON)
    )


async def lose_the_leader(world: World, group: int, workers: Workers | None = None) -> Node:
    """Kill the leader with all its unsynced data, and wait for the next one."""
    old = world.leader(group)
    assert old is not None
    if workers is not None:
        await workers.stop(old.number)
    old.kill(power=0.0)
    await world.wait(lambda: world.leader(group))
    await world.wait_leaders()
    return old


@story
async def test_who_holds_a_lease_holds_it_after_a_failover_and_no_longer_than_it_lasts(
    world: World, leader: Node
) -> None:
    workers = Workers(world)
    await workers.start()
    for name in (POOL, JOB):
        assert (await write_json(leader, name)).code == Code.CREATED
    config = {"type": "pull-wake", "streams": [JOB], "wake_stream": POOL, "lease_ttl_ms": 20_000}
    assert (await workers.ask("PUT", "subscriptions/s", config))[0] == 201
    await write_json(leader, JOB, b"1")
    claimed = await workers.until("POST", "subscriptions/s/claim", {"worker": "one"}, 200)
    loop, until = asyncio.get_running_loop(), asyncio.get_running_loop().time() + 20
    owner_group = next(number for number in (1, 2) if leader_knows(world, number, "s"))
    dead = await lose_the_leader(world, owner_group, workers)

    status, answer = await workers.ask("POST", "subscriptions/s/claim", {"worker": "two"})
    assert status == 409, "its first leader is gone, and the lease is not"
    assert answer["error"]["code"] == "ALREADY_CLAIMED"
    assert (answer["error"]["current_holder"], answer["error"]["generation"]) == (
        "one",
        claimed["generation"],
    )
    dead.start()
    await workers.start()
    second = (
        await workers.until("POST", "subscriptions/s/claim", {"worker": "two"}, 200)
        if loop.time() > until
        else None
    )
    while second is None:
        await asyncio.sleep(0.5)
        status, answer = await workers.ask("POST", "subscriptions/s/claim", {"worker": "two"})
        assert status == 409 or loop.time() > until - 0.5, "the lease ended before its time"
        assert loop.time() < until + 10, "the lease has no end"
        second = answer if status == 200 else None
    assert second["generation"] > claimed["generation"]
    late = {
        "wake_id": claimed["wake_id"],
        "generation": claimed["generation"],
        "acks": [],
        "done": True,
    }
    status, answer = await workers.ask("POST", "subscriptions/s/ack", late, claimed["token"])
    assert (status, answer["error"]["code"]) == (409, "FENCED")

    await lose_the_leader(world, owner_group, workers)
    acks = [{"stream": link["path"], "offset": link["tail_offset"]} for link in second["streams"]]
    done = {
        "wake_id": second["wake_id"],
        "generation": second["generation"],
        "acks": acks,
        "done": True,
    }
    assert (await workers.ask("POST", "subscriptions/s/ack", done, second["token"]))[0] == 200, (
        "a token is good at the next leader, too"
    )
    shown = (await workers.ask("GET", "subscriptions/s"))[1]
    assert shown["streams"][0]["acked_offset"] == TAIL
    for number in list(workers.shells):
        await workers.stop(number)


def leader_knows(world: World, group: int, key: str) -> bool:
    leader = world.leader(group)
    assert leader is not None
    return key in leader.core.core_replicas.groups[group].machine.subscriptions.owned


@pytest.mark.parametrize("lost", ["the source's leader", "the fork's leader"])
def test_a_fork_is_whole_or_not_there_and_its_source_is_held_and_let_go_after_a_failover(
    lost: str,
) -> None:
    @story
    async def tell(world: World, leader: Node) -> None:
        names = [f"test/fork{number}" for number in range(20)]
        child = next(name for name in names if world.group_of(name) != world.group_of(A))
        group = world.group_of(A if lost == "the source's leader" else child)
        await leader.append(A, b"before;")
        asked = world.alive()[0].engine.service
        command = Create(child, asked.now_ms(), "text/plain", Encoding.BYTES)
        assert (await asked.fork(command, A, -1, 0, 0)).code == Code.CREATED
        dead = await lose_the_leader(world, group)
        node = world.alive()[0]
        await node.append(A, b"after;")
        await node.append(child, b"own;")
        assert (await node.read(child), await node.read(A)) == (b"before;own;", b"before;after;")
        assert (await node.delete(A)).code == Code.OK
        info = await node.engine.service.info(A)
        assert not isinstance(info, StreamInfo) and info.code == Code.GONE, "a fork needs it still"
        dead.start()
        await world.wait_equal()
        await lose_the_leader(world, group)
        node = world.alive()[-1]
        assert await node.read(child) == b"before;own;"
        assert (await node.delete(child)).code == Code.OK
        await lets_go(node)

    tell()


async def lets_go(node: Node) -> None:
    """The last fork takes its deleted source with it, so that the name is free."""
    for _ in range(100):
        info = await node.engine.service.info(A)
        if not isinstance(info, StreamInfo) and info.code == Code.NOT_FOUND:
            return
        await node.engine.outbox_sender.sweep()
        await asyncio.sleep(0.1)
    raise AssertionError("the source of a fork that is gone is held for ever")


@story
async def test_a_producer_goes_on_where_it_was(world: World, leader: Node) -> None:
    group = world.group_of(A)
    for number in range(4):
        assert (await leader.append(A, b"%d;" % number, Producer("p", 3, number))).code == Code.OK
    await lose_the_leader(world, group)
    node = world.alive()[0]
    for number in range(4):
        again = await node.append(A, b"other;", Producer("p", 3, number))
        assert (again.code, again.first_record) == (Code.DUPLICATE, number), (
            "each of the last answers is remembered, with its position"
        )
    assert (await node.append(A, b"x", Producer("p", 3, 5))).code == Code.PRODUCER_GAP
    assert (await node.append(A, b"x", Producer("p", 2, 4))).code == Code.PRODUCER_STALE
    assert (await node.append(A, b"4;", Producer("p", 3, 4))).record == 5
    assert await node.read(A) == b"0;1;2;3;4;"


@story
async def test_what_was_read_lives_on_after_a_failover_and_no_longer(
    world: World, leader: Node
) -> None:
    """Reads that another node answered, and the leader alone heard of, count at the next leader."""
    name, loop = "test/short", asyncio.get_running_loop()
    group = world.group_of(name)
    make = Create(name, leader.engine.service.now_ms(), "text/plain", Encoding.BYTES, ttl_seconds=8)
    assert (await leader.propose(name, make)).code == Code.CREATED
    reader = next(node for node in world.alive() if not node.core.replicas.is_leader(group))
    for _ in range(6):
        await asyncio.sleep(2)
        await reader.read(name)
        for node in world.alive():
            node.engine.local.sweep()
    read_at = loop.time()
    await lose_the_leader(world, group)
    while loop.time() < read_at + 7:
        info = await reader.engine.service.info(name)
        assert isinstance(info, StreamInfo), (
            f"it went {loop.time() - read_at:.1f} s after it was read"
        )
        for node in world.alive():
            node.engine.local.sweep()
        await asyncio.sleep(0.5)
    await asyncio.sleep(8)
    for _ in range(4):
        for node in world.alive():
            node.engine.local.sweep()
        await asyncio.sleep(0.5)
    for node in world.alive():
        with pytest.raises(NotThere):
            await node.read(name)
