"""Subscriptions over several groups, of which one has no leader: pending work in the others
continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from sim.cluster import GROUPS, Node, World
from stories.cluster import led, stories
from worlds.service import json_batch
from worlds.subscriptions import Shell

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.names import group_of
from polynya.raft.codec import group_of_message
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code

HOME, AWAY = 1, 2  # the group of the subscription, and the one that loses its leader
JOBS = {
    group: next(f"test/{n}" for n in range(99) if group_of(f"test/{n}", GROUPS) == group)
    for group in (HOME, AWAY)
}
POOL = next(f"wake/{n}" for n in range(99) if group_of(f"wake/{n}", GROUPS) == HOME)
KEY = next(f"s{n}" for n in range(99) if group_of(f"__ds/subscriptions/s{n}", GROUPS) == HOME)
TAIL = "0000000000000001_0000000000000002"
PUT = {
    "type": "pull-wake",
    "streams": sorted(JOBS.values()),
    "wake_stream": POOL,
    "lease_ttl_ms": 20_000,
}


class Clerks:
    """Subscriptions at all nodes of a cluster, each asked in turn."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shells: dict[int, Shell] = {}

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            node: Any = SimpleNamespace(
                service=self.world.nodes[number].engine.service,
                engine=self.world.nodes[number].engine,
            )
            self.shells[number] = Shell(node)
            await self.shells[number].subscriptions.start()

    async def stop(self, *numbers: int) -> None:
        for number in numbers:
            await self.shells.pop(number).subscriptions.stop()

    async def ask(
        self, method: str, path: str, body: Any = None, token: str = ""
    ) -> tuple[int, Any]:
        shells = list(self.shells.values())
        for attempt in range(30):
            with suppress(Unavailable, OutcomeUnknown):
                return await shells[attempt % len(shells)].ask(
                    method, f"subscriptions/{KEY}{path}", body, token
                )
            await asyncio.sleep(0.1)
        raise AssertionError(f"nobody answers {method} {path}")

    async def claim(self) -> Any:
        """Claim work once it is pending."""
        for _ in range(100):
            status, answer = await self.ask("POST", "/claim", {"worker": "w"})
            if status == 200:
                return answer
            await asyncio.sleep(0.1)
        raise AssertionError(answer)


Again = Callable[[], Awaitable[None]]


async def deafen(world: World, clerks: Clerks) -> Again:
    """Cut a group off: no message of it arrives, and every node knows that it has no leader."""
    carry = world.carry

    def some(sender: Node, to: int, messages: list[bytes]) -> None:
        carry(sender, to, [message for message in messages if group_of_message(message) != AWAY])

    async def again() -> None:
        world.carry = carry  # type: ignore[method-assign]

    world.carry = some  # type: ignore[method-assign]
    return again


async def kill_two(world: World, clerks: Clerks) -> Again:
    """Kill two of a group's three members: nodes without a replica of it cannot know."""
    await clerks.stop(4, 5)
    for number in (4, 5):
        world.nodes[number].kill()

    async def again() -> None:
        for number in (4, 5):
            world.nodes[number].start()
        await clerks.start(4, 5)

    return again


def done(claim: Any) -> dict[str, Any]:
    acks = [
        {"stream": link["path"], "offset": link["tail_offset"]}
        for link in claim["streams"]
        if link["has_pending"]
    ]
    return {
        "wake_id": claim["wake_id"],
        "generation": claim["generation"],
        "acks": acks,
        "done": True,
    }


@pytest.mark.parametrize("lose", [deafen, kill_two])
def test_what_is_pending_in_other_groups_is_claimed_and_acknowledged(
    lose: Callable[[World, Clerks], Awaitable[Again]],
) -> None:
    @stories(lambda: led(World(count=5, replicas=3)))
    async def tell(world: World, leader: Node) -> None:
        clerks, node = Clerks(world), world.nodes[1]
        await clerks.start(*world.nodes)
        for name in (POOL, *JOBS.values()):
            assert (
                await node.propose(name, Create(name, 0, "application/json", Encoding.JSON))
            ).code == Code.CREATED
        assert (await clerks.ask("PUT", "", PUT))[0] == 201
        for name in JOBS.values():
            assert (
                await node.propose(name, Append(name, 0, "application/json", json_batch(b"1")))
            ).code == Code.OK
        again = await lose(world, clerks)
        await world.wait(lambda: world.leader(AWAY) is None)
        await world.wait(lambda: world.leader(HOME) is not None)

        assert (await clerks.ask("PUT", "", PUT))[0] == 200, "there is nothing to do for it"
        claim = await clerks.claim()
        assert [(link["path"], link["has_pending"]) for link in claim["streams"]] == [
            (JOBS[HOME], True)
        ]
        assert await clerks.ask("POST", "/ack", done(claim), claim["token"]) == (
            200,
            {"ok": True, "next_wake": False},
        )

        await again()
        await world.wait_leaders()
        claim = await clerks.claim()
        assert {link["path"] for link in claim["streams"] if link["has_pending"]} == {JOBS[AWAY]}, (
            "it had to wait for its turn"
        )
        assert (await clerks.ask("POST", "/ack", done(claim), claim["token"]))[0] == 200
        shown = (await clerks.ask("GET", ""))[1]
        assert {link["acked_offset"] for link in shown["streams"]} == {TAIL}
        await clerks.stop(*list(clerks.shells))

    tell()
