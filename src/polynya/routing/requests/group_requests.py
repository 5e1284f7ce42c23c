"""Requests by group: to the core that acts for it, to a replica, or to replicas of many groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from polynya.base.errors import NotLeader
from polynya.routing.attempts import LOOK_SECONDS, PATIENCE_SECONDS
from polynya.routing.leaders import Leaders
from polynya.routing.requests.core_requests import CoreRequests
from polynya.routing.requests.fan_out import ReplicaFanOut


class GroupRequests:
    """The requests of one core. `handle` answers on this core, and is served under `kind` on the
    others."""

    def __init__(self, requests: CoreRequests, leaders: Leaders, replicas: ReplicaFanOut) -> None:
        self._requests = requests
        self._leaders = leaders
        self._replicas = replicas

    async def at_home(
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        changes: bool = False,
    ) -> Any:
        """Return the response of the core that acts for a group: from `handle` if that is this
        core. Wait for an election. `handle` may raise NotLeader only before it has done anything.
        `changes`: the request has an effect, so a lost response raises OutcomeUnknown."""
        leaders = self._leaders
        patience = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            place = -1
            try:
                place = leaders.home_of(group, through=True)
                return await (
                    handle(question)
                    if place == leaders.core
                    else self._requests.ask(place, kind, question, group, changes=changes)
                )
            except NotLeader as fault:
                if place >= 0:
                    leaders.learn(group, place, fault.node)
                if asyncio.get_running_loop().time() > patience:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    async def at_replica(  # noqa: PLR0913
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
    ) -> Any:
        """Return the response of a replica: from `handle` if this core hosts one. `local`: prefer
        this node's replica, even a stale one."""
        return await self._replicas.ask(
            group,
            lambda: handle(question),
            lambda place: self._requests.ask(place, kind, question),
            local=local,
        )

    async def of_groups(  # noqa: PLR0913
        self,
        groups: Iterable[int],
        kind: int,
        question: Callable[[list[int]], Any],
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
        missing: list[int] | None = None,
    ) -> list[Any]:
        """Return the results of a request over many groups, in parts; each group is in one part.
        `handle` serves groups with a replica on this core, other cores the rest. Raise Unavailable
        when no replica of a group responds; with `missing`, append such groups to it instead."""

        def there(place: int, some: list[int]) -> Awaitable[Any]:
            return self._requests.ask(place, kind, question(some))

        return await self._replicas.ask_all(
            groups, lambda some: handle(question(some)), there, local=local, missing=missing
        )
