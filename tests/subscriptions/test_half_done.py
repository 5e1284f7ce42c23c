"""Partial success of a subscription request is not reported as a refusal, which would claim that
nothing was done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
from polling import wait_for
from worlds.subscriptions import Shell, shell

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.names import group_of
from polynya.stream.command import Command
from polynya.stream.features.settings.commands import MetaSet
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionEvent,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.replies import Reply
from polynya.wal import DiskFull

FIRST, SECOND = (
    next(f"test/{n}" for n in range(99) if group_of(f"test/{n}", 4) == group) for group in (1, 2)
)
TAIL = "0000000000000001_0000000000000003"


def refuse(
    node: Shell, unless: Callable[[int, Command], bool], fault: type[Exception] = Unavailable
) -> Callable[[], None]:
    """Refuse commands to the groups from now on, as without a leader. Returns the function that
    ends it."""
    service: Any = node.world.service
    call = service.call

    async def call_or_refuse(group: int, command: Command) -> Reply:
        if unless(group, command):
            return await call(group, command)  # type: ignore[no-any-return]
        raise fault("not now")

    def end() -> None:
        service.call = call

    service.call = call_or_refuse
    return end


async def pulled(node: Shell) -> None:
    """A pull-wake subscription with pending records in two groups."""
    await node.put("s", type="pull-wake", streams=[FIRST, SECOND], wake_stream="wake/pool")
    for name in (FIRST, SECOND):
        await node.world.create(name)
        await node.world.append(name, b"one")


def story(tell: Callable[[Shell], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            async with shell() as node:
                await tell(node)

        asyncio.run(run())

    test.__name__ = tell.__name__
    return test


@story
async def test_one_that_not_all_groups_know_of_yet(node: Shell) -> None:
    end = refuse(
        node, lambda group, command: not isinstance(command, LinkSubscription) or group != 2
    )
    config = {"type": "pull-wake", "pattern": "test/*", "wake_stream": "wake/pool"}
    with pytest.raises(OutcomeUnknown, match="the operation was applied in part"):
        await node.put("s", **config)
    end()
    assert (await node.put("s", **config))[0] == 200, "it was made"
    end = refuse(node, lambda group, command: not isinstance(command, LinkSubscription))
    with pytest.raises(OutcomeUnknown):
        await node.ask("POST", "subscriptions/s/streams", {"streams": ["other"]})
    end()
    await node.subscriptions._sweep()
    shown = (await node.ask("GET", "subscriptions/s"))[1]
    assert [link["path"] for link in shown["streams"]] == ["other"]


@story
async def test_a_deleted_one_is_gone_although_not_all_groups_could_be_told(node: Shell) -> None:
    await pulled(node)
    end = refuse(node, lambda group, command: not isinstance(command, UnlinkSubscription))
    assert (await node.ask("DELETE", "subscriptions/s"))[0] == 204
    end()
    assert (await node.ask("GET", "subscriptions/s"))[0] == 404
    await node.subscriptions._sweep()
    assert not any(machine.subscriptions.graves for machine in node.world.local.machines.values())


@story
async def test_leases_end_while_a_group_is_waited_for(node: Shell) -> None:
    await pulled(node)
    assert (await node.ask("POST", "subscriptions/s/claim", {"worker": "w"}))[0] == 200
    await node.put("old", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
    refuse(node, lambda group, command: not isinstance(command, UnlinkSubscription))
    assert (await node.ask("DELETE", "subscriptions/old"))[0] == 204
    waits = asyncio.Event()

    async def hang(owner_group: int, key: str, uid: int) -> None:
        waits.set()
        await asyncio.Event().wait()

    node.subscriptions._links.untell = hang  # type: ignore[method-assign]
    with patch("polynya.subscriptions.shell.SWEEP_TICKS", 1):
        await waits.wait()
        node.world.clock.ms += 60_000
        await wait_for(lambda: node.subscriptions.counters.expired, what="the lease ends")


@story
async def test_a_claim_that_cannot_be_answered_takes_no_lease(node: Shell) -> None:
    await pulled(node)
    end = refuse(node, lambda group, command: not isinstance(command, MetaSet))
    with pytest.raises(Unavailable):
        await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
    end()
    assert (await node.ask("POST", "subscriptions/s/claim", {"worker": "w"}))[0] == 200


@story
async def test_a_claim_whose_answer_was_lost_comes_again(node: Shell) -> None:
    await pulled(node)
    asked = {"worker": "w", "claim_id": "1"}
    status, claim = await node.ask("POST", "subscriptions/s/claim", asked)
    subscription = next(
        subscription
        for machine in node.world.local.machines.values()
        for subscription in machine.subscriptions.owned.values()
    )
    node.world.clock.ms += 20_000
    again = await node.ask("POST", "subscriptions/s/claim", asked)
    assert (status, again[0]) == (200, 200)
    assert [again[1][field] for field in ("wake_id", "generation", "streams")] == [
        claim[field] for field in ("wake_id", "generation", "streams")
    ]
    assert subscription.lease_until_ms == node.world.clock.ms + claim["lease_ttl_ms"]
    for other in (
        {"worker": "w", "claim_id": "2"},
        {"worker": "v", "claim_id": "1"},
        {"worker": "w"},
    ):
        status, refused = await node.ask("POST", "subscriptions/s/claim", other)
        assert (status, refused["error"]["code"], refused["error"]["current_holder"]) == (
            409,
            "ALREADY_CLAIMED",
            "w",
        )
    assert (await node.ask("GET", "subscriptions/s"))[1]["current_holder"] == "w"
    for wrong in (
        {"worker": "w\0"},
        {"worker": "w", "claim_id": "\0"},
        {"worker": "w", "claim_id": "x" * 257},
    ):
        assert (await node.ask("POST", "subscriptions/s/claim", wrong))[0] == 400
    done = {
        "wake_id": claim["wake_id"],
        "generation": 1,
        "acks": [{"stream": name, "offset": TAIL} for name in (FIRST, SECOND)],
        "done": True,
    }
    assert (await node.ask("POST", "subscriptions/s/ack", done, again[1]["token"]))[0] == 200
    assert (await node.ask("POST", "subscriptions/s/claim", asked))[1]["error"][
        "code"
    ] == "NO_PENDING_WORK"


@story
async def test_two_of_the_same_claim_at_once(node: Shell) -> None:
    await pulled(node)
    asked = {"worker": "w", "claim_id": "1"}
    answers = await asyncio.gather(
        *(node.ask("POST", "subscriptions/s/claim", asked) for _ in range(3))
    )
    assert [status for status, _ in answers] == [200] * 3
    assert len({(answer["wake_id"], answer["generation"]) for _, answer in answers}) == 1


@story
async def test_cursors_of_which_some_moved(node: Shell) -> None:
    await pulled(node)
    claim = (await node.ask("POST", "subscriptions/s/claim", {"worker": "w"}))[1]
    acks = [{"stream": name, "offset": TAIL} for name in (FIRST, SECOND)]
    done = {
        "wake_id": claim["wake_id"],
        "generation": claim["generation"],
        "acks": acks,
        "done": True,
    }
    end = refuse(node, lambda group, command: not isinstance(command, AckLinks))
    with pytest.raises(Unavailable):
        await node.ask("POST", "subscriptions/s/ack", done, claim["token"])
    end()
    end = refuse(node, lambda group, command: not isinstance(command, AckLinks) or group == 1)
    with pytest.raises(OutcomeUnknown, match="some cursors have moved"):
        await node.ask("POST", "subscriptions/s/ack", done, claim["token"])
    end()
    end = refuse(
        node,
        lambda group, command: (
            not (isinstance(command, SubscriptionEvent) and command.event == Event.DONE)
        ),
    )
    with pytest.raises(OutcomeUnknown, match="the operation was applied in part"):
        await node.ask("POST", "subscriptions/s/ack", done, claim["token"])
    end()
    assert (await node.ask("POST", "subscriptions/s/ack", done, claim["token"]))[0] == 200


@story
async def test_a_full_disk_is_named(node: Shell) -> None:
    end = refuse(node, lambda group, command: False, DiskFull)
    status, answer = await node.put(
        "s", type="pull-wake", pattern="test/*", wake_stream="wake/pool"
    )
    assert (status, answer["error"]["code"]) == (507, "DISK_FULL")
    end()
