"""The leaders of groups that have no replica on this node, learned from nodes that have one.

A proposal finds its leader by redirects. Kafka's metadata names leaders and their epochs before any
proposal, so each core asks about its groups now and then, and tells the other cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.routing import messages
from polynya.routing.forwarding import Forwarding
from polynya.routing.leader_map import Leader

_TIMEOUT_SECONDS = 2.0
AskCore = Callable[[int, int, Any], Awaitable[Any]]


class RemoteLeaders:
    """The queries of one core, and its answers to those of other nodes."""

    def __init__(self, forwarding: Forwarding, ask: AskCore) -> None:
        self._forwarding = forwarding
        self._ask = ask
        self._rounds = 0  # each asks another replica first
        self._map_epoch = -1
        self._groups: list[int] = []  # of this core, without a replica on this node

    async def refresh(self) -> None:
        """Ask for the leaders of all groups of this core that have no replica on this node."""
        targets: dict[int, list[int]] = {}
        locations = self._forwarding.group_locations
        for group in self._foreign():
            node = locations.likely(group, self._rounds)
            if node:
                target = self._forwarding.targets.core_at(node, group)
                targets.setdefault(target, []).append(group)
        self._rounds += 1
        await asyncio.gather(*(self._learn(*each) for each in targets.items()))

    async def answer(self, groups: list[int]) -> dict[int, Leader]:
        """Return the leaders, with their epochs, that the replicas of this core know."""
        found = ((group, self._forwarding.leaders.of_replica(group)) for group in groups)
        return {group: leader for group, leader in found if leader is not None}

    def _foreign(self) -> list[int]:
        place, known = self._forwarding.place, self._forwarding.group_locations.map
        if known.epoch != self._map_epoch:
            self._map_epoch = known.epoch
            own = range(place.core, place.groups + 1, place.cores)
            self._groups = [each for each in own if place.node not in known.replicas_of(each)]
        return self._groups

    async def _learn(self, target: int, groups: list[int]) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                leaders = await self._ask(target, messages.LEADERS_OF, groups)
        except (PolynyaError, TimeoutError):
            return  # the next round asks another replica
        self._forwarding.exchange.learn({each: leaders[each] for each in groups if each in leaders})
