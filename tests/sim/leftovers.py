"""Leftovers on a healthy cluster: each pack in the object store is needed by a group, and each
owner group knows only existing holders."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from sim.cluster import World
from sim.store import SimStore
from sim.tier import CLUSTER

from polynya.stream.machine import Machine
from polynya.wire.page import read_page

if TYPE_CHECKING:
    from sim.swarm import SwarmEpisode

SHARE = 0.15  # of the worlds with an object store
SECONDS = 300.0  # sweeps leave alone what is younger than a minute


class LeftoverCheck:
    """The search for leftovers in one episode."""

    def __init__(self, episode: SwarmEpisode) -> None:
        self._world = episode.world
        self.looks = (
            Random(f"tidy {episode.seed}").random() < SHARE and episode.world.store is not None
        )

    async def finish(self) -> None:
        if not self.looks:
            return
        for node in self._world.nodes.values():
            node.clock.wall_ms = 0
        deadline = asyncio.get_running_loop().time() + SECONDS
        while left := leftovers(self._world):
            assert asyncio.get_running_loop().time() < deadline, (
                f"unused objects stay, though all is well: {left}"
            )
            await asyncio.sleep(1.0)


def leftovers(world: World) -> list[str]:
    """Describe the leftovers; empty also while a group has no leader."""
    store, machines = world.store, dict[int, Machine]()
    assert isinstance(store, SimStore)
    for node in world.alive():
        machines |= node.core.led
    if len(machines) <= world.nodes[1].engine.service.groups:
        return ["somebody does not lead"]
    known = {key for machine in machines.values() for key in machine.packs.owned}
    pages = [key for machine in machines.values() for key in machine.packs.held.pages()]
    known |= {
        pack
        for key in pages
        if key in store.objects
        for pack, _ in read_page(key, store.objects[key][0]).packs
    }
    found = [
        f"{key} is in no log"
        for key in store.objects
        if key.startswith((f"{CLUSTER}/packs/", f"{CLUSTER}/pages/")) and key not in known
    ]
    found += [
        f"{key} is released too late" for each in machines.values() for key in each.packs.pages_gone
    ]
    for owner_group, machine in machines.items():
        for key, pack in machine.packs.owned.items():
            idle = [group for group in pack.groups if key not in machines[group].packs.held]
            if idle or not pack.groups:
                found.append(f"{key} of group {owner_group} is not needed by {idle}")
    return found
