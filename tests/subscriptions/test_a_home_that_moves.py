"""Moves of a subscription's owner group to another leader, away from this core, or to another
node's state, while this core is about to act."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

import pytest
from polling import turns, wait_for
from worlds.subscriptions import Shell, shell

from polynya.base.errors import OutcomeUnknown
from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.features.subscriptions.state import Subscription
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply

ANNOUNCED_MAX = 3


def story(tell: Callable[[Shell], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            async with shell() as node, asyncio.timeout(30):
                await tell(node)

        asyncio.run(run())

    test.__name__ = tell.__name__
    return test


def owner_of(node: Shell, key: str) -> Machine:
    return node.world.local.machines[node.subscriptions._wakes.owner_group_of(key)]


@story
async def test_links_are_told_once_although_the_state_is_another_nodes_meanwhile(
    node: Shell,
) -> None:
    links: Any = node.subscriptions._links
    register, calls = links.register, 0

    async def other_state(owner_group: int, subscription: Subscription) -> bool:
        nonlocal calls
        calls += 1
        assert calls < 3, "the groups are told again and again"
        owned = owner_of(node, "s").subscriptions.owned
        owned["s"] = deepcopy(owned["s"])
        return await register(owner_group, subscription)  # type: ignore[no-any-return]

    links.register = other_state
    assert (await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool"))[
        0
    ] == 201
    assert calls == 1


@story
async def test_one_whose_home_has_left_is_not_called_deleted(node: Shell) -> None:
    links: Any = node.subscriptions._links
    register = links.register

    async def leaving(owner_group: int, subscription: Subscription) -> bool:
        answer = await register(owner_group, subscription)
        gone.append((owner_group, node.world.local.machines.pop(owner_group)))
        return answer  # type: ignore[no-any-return]

    links.register = leaving
    gone: list[tuple[int, Machine]] = []
    with pytest.raises(OutcomeUnknown, match="the group has moved"):
        await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
    node.world.local.machines.update(gone)


@story
async def test_who_leads_no_more_announces_no_more(node: Shell) -> None:
    wakes: Any = node.subscriptions._wakes
    event, announce, announced = wakes.event, wakes._announce, 0
    await node.world.create("wake/pool", json=True)
    await node.world.create("test/a")
    await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")

    async def elsewhere(subscription: Subscription, what: Event, *rest: Any, **more: Any) -> Reply:
        """Apply the event at the new leader; this member lags."""
        if what != Event.DELIVERED:
            return await event(subscription, what, *rest, **more)  # type: ignore[no-any-return]
        local.led = {}
        return Reply(Code.OK)

    async def counted(*what: Any) -> None:
        nonlocal announced
        announced += 1
        assert announced < ANNOUNCED_MAX
        await announce(*what)

    local, wakes.event, wakes._announce = node.world.local, elsewhere, counted
    await node.world.append("test/a", b"one")
    await wait_for(lambda: not local.led, what="the home moves")
    await turns()
    assert announced == 1
