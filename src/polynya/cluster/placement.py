"""Reconcile one core with the map: create the replicas that it places here, drop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

from polynya.base.errors import PolynyaError
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.engine.replicas.lifecycle import ReplicaLifecycle
from polynya.engine.replicated import ReplicatedEngine
from polynya.jobs import repeat
from polynya.routing.group_locations import GroupLocations, GroupMap
from polynya.stream.features.placement.cluster_map import META_GROUP

AGAIN_SECONDS = 1.0  # retry interval
log = logging.getLogger("polynya.placement")


class PlacementReconciler:
    """Creates and drops the replicas of one core. `groups` are this core's share of the groups.
    `on_map` run before any action on a map."""

    def __init__(
        self,
        core: ReplicatedEngine,
        lifecycle: ReplicaLifecycle,
        reconfiguration: Reconfiguration,
        locations: GroupLocations,
        groups: range,
    ) -> None:
        self._core, self._lifecycle, self._reconfiguration, self._locations = (
            core,
            lifecycle,
            reconfiguration,
            locations,
        )
        self._groups = groups
        self._news = asyncio.Event()
        self.on_map: list[Callable[[GroupMap], None]] = []
        self.missing: set[int] = set()  # groups with a voting replica here whose data is lost
        core.replicas.first_of = locations.first_of

    def adopt(self, newest: GroupMap) -> None:
        """Adopt a newer map; ignore others."""
        if newest.epoch <= self._locations.map.epoch:
            return
        self._locations.map = newest
        for group, member in self._core.members.items():
            member.raft.settings = self._core.replicas.settings_of(group)
        self._core.leadership.placed_anew(self._groups)
        for hear in self.on_map:
            hear(newest)
        self._news.set()

    async def run(self) -> None:
        """Run until cancelled."""
        await repeat(self._work, inf, wake=self._news)

    async def _work(self) -> None:
        while not await self._match():
            await asyncio.sleep(AGAIN_SECONDS)

    async def _match(self) -> bool:
        """Create and drop replicas. Return True if the core matches the map."""
        known, node, core = self._locations.map, self._locations.node, self._core
        if not known.epoch:  # the birth map: its replicas exist already
            return True
        done = True
        self.missing = set()
        for group in self._groups:
            wanted = node in known.replicas_of(group)
            try:
                if wanted and not core.replicas.has(group):
                    done = await self._make(group) and done
                elif not wanted and core.replicas.has(group) and group != META_GROUP:
                    done = await self._drop(group) and done
            except PolynyaError as fault:
                done = False
                log.info(
                    "cannot create or drop a replica yet; retrying",
                    extra={"group": group, "reason": str(fault)},
                )
        return done

    async def _make(self, group: int) -> bool:
        known, node = self._locations.map, self._locations.node
        if node in known.placed_on(group) and node not in known.learners_of(group):
            # a new replica would forget the votes and acknowledgements that others rely on
            self.missing.add(group)
            return True
        await self._lifecycle.make(group)
        log.info("created a replica", extra={"group": group})
        return True

    async def _drop(self, group: int) -> bool:
        """Drop a replica that is out of the map, once the group's leader confirms that it is no
        member."""
        reported_ms = self._core.now_ms()
        status = await self._reconfiguration.status(group)
        if not status.settled or self._core.node in status.configuration.members:
            return False
        await self._lifecycle.drop(group, reported_ms=reported_ms)
        log.info("dropped a replica", extra={"group": group})
        return True
