"""Subscriptions that are created and deleted, by pattern and by name, whose streams change too:
deleted, trimmed, re-created, or not yet created. On a healthy cluster each group watches as the
owner group says, and new subscriptions receive records. Nothing is left of a deleted one."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from sim.stream_clients import NAMES as LIVES
from sim.workers import BASE, Shop

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.names import canonical_name, spelled_name
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.subscriptions.commands import SubscriptionConfig
from polynya.stream.features.subscriptions.rules import PULL_WAKE
from polynya.stream.features.subscriptions.state import EXPLICIT, State
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.subscriptions.messages import (
    ClaimWork,
    DeleteSubscription,
    Get,
    Members,
    OperationResult,
    Put,
    Work,
)

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

SHARE = 0.25  # of the worlds
KEYS = ("guest1", "guest2")
WAKE_STREAM = "wakes/guests"
LATE = ("guests/x", "guests/y")  # of which one is made in the end
NAMES = (*LIVES, *LATE)
PATTERN = "life/*"
LEASE_MS = 1500


def disagreement(machine: Machine) -> str:
    """Describe an inconsistency in a group's subscriptions; empty if there is none."""
    state = machine.subscriptions
    for key, watch in state.watches.items():
        linked = {
            stream.uid
            for stream in machine.directory.streams.values()
            if key in (stream.links or ())
        }
        if linked != set(watch.linked):
            return f"{key} has links to {sorted(linked)}, and watches {sorted(watch.linked)}"
        pending = {
            uid
            for uid in linked
            if machine.directory.by_uid[uid].next_record
            > machine.directory.by_uid[uid].links[key].record
        }  # type: ignore[index]
        if pending != set(watch.pending):
            return (
                f"{key} has something to do in {sorted(pending)}, and knows {sorted(watch.pending)}"
            )
        for stream in machine.directory.streams.values():
            kinds = (stream.links or {})[key].kinds if stream.uid in linked else 0
            wanted = EXPLICIT if stream.name in watch.registration.streams else 0
            if kinds & EXPLICIT != wanted and not stream.deleted:
                return (
                    f"{key} is linked to {stream.name} as {kinds}, and wants "
                    f"{list(watch.registration.streams)}"
                )
    unknown = {
        key for stream in machine.directory.streams.values() for key in stream.links or ()
    } - state.watches.keys()
    if unknown:
        return f"streams have links of {unknown}"
    awake = {key for key, each in state.owned.items() if each.state != State.IDLE}
    return (
        ""
        if awake == set(state.awake)
        else f"{awake} are not idle, and {list(state.awake)} are looked after"
    )


class Subscribers:
    """The subscribers of one episode: one client for each."""

    def __init__(self, episode: Episode, shop: Shop) -> None:
        self._episode, self._world, self._shop = episode, episode.world, shop
        self.strikes = Random(f"come and go {episode.seed}").random() < SHARE
        self.counts: Counter[str] = Counter()

    def clients(self) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self._client(key)) for key in KEYS] if self.strikes else []

    async def finish(self) -> None:
        """Check the subscriptions on the healthy cluster."""
        if not self.strikes:
            return
        random = Random(f"guests go {self._episode.seed}")
        self._agree()
        for key in KEYS:
            await self._surely(DeleteSubscription(key, BASE), 204)
        await self._until(lambda: [text for key in KEYS if (text := self._left_of(key))])
        asked = sorted({*random.sample(NAMES, 2), LATE[0]})
        await self._surely(Put(KEYS[0], BASE, _config(random, asked)), 201, 200)
        self._agree()
        await self._hears(KEYS[0], LATE[0])

    def _agree(self) -> None:
        """Check at any moment that owner groups and others agree."""
        for machine in self._machines():
            text = disagreement(machine)
            assert not text, f"group {machine.group}: {text}"

    async def _hears(self, key: str, name: str) -> None:
        """Check that records of a later stream are announced and reach a worker."""
        node = self._world.alive()[0]
        before = await self._announced(key)
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                await node.background.ask(node.create(name))
                if (await node.background.ask(node.append(name, b"guest;"))).code == 0:
                    break
            await asyncio.sleep(0.2)
        for _ in range(200):
            if await self._announced(key) > before:
                break
            await asyncio.sleep(0.2)
        else:
            raise AssertionError(f"{key}: no worker hears of what came to {name}")
        answer = await self._surely(ClaimWork(key, BASE, "guest"), 200)
        assert spelled_name(name) in [
            link["path"] for link in (answer.value or {})["streams"] if link["has_pending"]
        ], answer

    async def _announced(self, key: str) -> int:
        """Count the events for it in the wake stream."""
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                await self._make_wake_stream(self._world.alive()[0])
                node = self._world.alive()[0]
                return (await node.background.ask(node.read(WAKE_STREAM))).count(
                    b'"subscription_id":"%s"' % key.encode()
                )
            await asyncio.sleep(0.2)
        raise AssertionError(f"{WAKE_STREAM} cannot be read though all is well")

    def _left_of(self, key: str) -> str:
        """Describe the remains of a deleted subscription."""
        for machine in self._machines():
            state = machine.subscriptions
            links = [
                stream.name
                for stream in machine.directory.streams.values()
                if key in (stream.links or ())
            ]
            graves = [grave for grave in state.graves.values() if grave.id == key]
            waits = [
                name
                for each in (state.by_name, state.by_segment)
                for name, keys in each.items()
                if key in keys
            ]
            if key in state.owned or key in state.watches or links or graves or waits:
                return (
                    f"group {machine.group} has of {key}: {links} {graves} {waits} "
                    f"{state.watches.get(key)}"
                )
        return ""

    def _machines(self) -> list[Machine]:
        return [
            machine
            for node in self._world.alive()
            for machine in node.engine.local.machines.values()
        ]

    async def _until(self, left: Any) -> None:
        for _ in range(200):
            found = left()
            if not found:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"though all is well: {found[0]}")

    # --- clients

    async def _client(self, key: str) -> None:
        random = Random(f"{key} {self._episode.seed}")
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / 0.5))
            alive = self._world.alive()
            if not alive:
                continue
            node, act = random.choice(alive), random.random()
            if act < 0.1:
                with suppress(Unavailable, OutcomeUnknown):
                    await self._make_wake_stream(node)
            elif act < 0.35:
                names = sorted(random.sample(NAMES, random.randrange(3)))
                await self._ask(node, Put(key, BASE, _config(random, names)))
            elif act < 0.5:
                await self._ask(node, DeleteSubscription(key, BASE))
            elif act < 0.75:
                await self._ask(
                    node, Members(key, BASE, random.sample(NAMES, 1), random.sample(NAMES, 2))
                )
            elif act < 0.85:
                await self._ask(node, Get(key, BASE))
            else:
                await self._work(node, key)

    async def _make_wake_stream(self, node: Node) -> None:
        await node.background.ask(
            node.propose(
                WAKE_STREAM,
                Create(
                    WAKE_STREAM, node.engine.service.now_ms(), "application/json", Encoding.JSON
                ),
            )
        )

    async def _work(self, node: Node, key: str) -> None:
        """Complete the announced work; the set of streams may have changed since."""
        answer = await self._ask(node, ClaimWork(key, BASE, key))
        if answer is not None and answer.status == 200:
            value: dict[str, Any] = answer.value or {}
            assert any(link["has_pending"] for link in value["streams"]), (
                "whoever gets the lease gets work"
            )
            acks = [
                (canonical_name(link["path"]), link["tail_offset"]) for link in value["streams"]
            ]
            await self._ask(
                node,
                Work(
                    key,
                    BASE,
                    "ack",
                    value["token"],
                    value["generation"],
                    value["wake_id"],
                    acks,
                    done=True,
                ),
            )

    async def _ask(self, node: Node, operation: Any) -> OperationResult | None:
        """Send an operation. None: the outcome is unknown."""
        try:
            answer: OperationResult = await node.background.ask(
                node.background.subscriptions.operate(operation), 8.0
            )
        except (Unavailable, OutcomeUnknown):
            self.counts[f"{type(operation).__name__} unknown"] += 1
            return None
        self.counts[f"{type(operation).__name__} {answer.status}"] += 1
        assert answer.status < 500 or answer.status == 507, f"{operation} is answered {answer}"
        return answer

    async def _surely(self, operation: Any, *statuses: int) -> OperationResult:
        """Ask until the answer is one of these: a repeat after a lost answer may have another."""
        answer: OperationResult | None = None
        for _ in range(100):
            answer = await self._ask(self._world.alive()[0], operation)
            if answer is not None and answer.status in statuses:
                return answer
            await asyncio.sleep(0.2)
        raise AssertionError(f"{operation} is answered {answer} though all is well")


def _config(random: Random, names: list[str]) -> SubscriptionConfig:
    pattern = random.choice((PATTERN, PATTERN, "")) if names else PATTERN
    return SubscriptionConfig(PULL_WAKE, pattern, names, "", WAKE_STREAM, LEASE_MS)


__all__ = ["Subscribers", "disagreement"]
