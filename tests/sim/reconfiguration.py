"""Reconfiguration of a simulated cluster: its groups move to the map's goals step by step, as by a
controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from sim.parts import GROUPS, SimMap, reached

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.raft import Configuration

if TYPE_CHECKING:
    from sim.cluster import Node


class Steered:
    """A part of the world."""

    map: SimMap
    random: Random

    def alive(self) -> list[Node]:
        raise NotImplementedError

    def redraw(self, **fields: Any) -> None:
        raise NotImplementedError

    async def wait(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        raise NotImplementedError

    async def steer(self, group: int, node: Node, still: Callable[[], bool] = lambda: True) -> bool:
        """Take one step of a controller towards the group's goal, and report whether it is
        reached. May raise Unavailable and OutcomeUnknown. `still`: whether the controller
        lives."""
        goal = self.map.goals[group]
        drive = node.process.drive
        status = await drive(node.reconfiguration.status(group))
        known = status.configuration
        if goal != self.map.goals[group] or not status.settled or not still():
            return False
        readers = tuple(
            sorted(set(self.map.members if group == 0 else self.map.readers) - set(goal))
        )
        if (known.voters, known.learners, known.readers) == (goal, (), readers):
            if self.map.voters[group] != goal:
                self.redraw(voters={**self.map.voters, group: goal})
            return True
        learners = tuple(each for each in goal if each not in known.voters)
        if known.learners != learners:
            # one that the goal no longer names has no replica, and a lost disk would await it
            stay = tuple(each for each in readers if each in known.readers and each not in learners)
            await drive(
                node.reconfiguration.change(group, Configuration(known.voters, (), learners, stay))
            )
        else:
            readers = tuple(each for each in readers if each not in goal)
            await drive(node.reconfiguration.change(group, Configuration(goal, (), (), readers)))
        return False

    async def wait_placed(self, seconds: float = 60.0) -> None:
        """Wait until every group is exactly where it belongs, while anything moves."""
        loop = asyncio.get_running_loop()
        deadline, end, before = (
            loop.time() + seconds,
            loop.time() + 30 * seconds,
            reached(self.alive()),
        )
        for group in range(GROUPS + 1):
            while not await self._try_steer(group):
                if loop.time() >= deadline:
                    moves = loop.time() < end and reached(self.alive()) != before
                    assert moves, (
                        f"group {group} does not come to {self.map.goals[group]}: "
                        f"{self.seen_of(group)}"
                    )
                    deadline, before = loop.time() + seconds, reached(self.alive())
                await asyncio.sleep(0.05)

        def placed() -> bool:
            return all(
                node.core.replicas.has(group) == (node.number in self.map.replicas_of(group))
                for node in self.alive()
                for group in range(1, GROUPS + 1)
            )

        await self.wait(placed, seconds)

    async def _try_steer(self, group: int) -> bool:
        with suppress(Unavailable, OutcomeUnknown):
            return await self.steer(group, self.random.choice(self.alive()))
        return False

    def seen_of(self, group: int) -> str:
        """Describe the replicas of a group for people."""
        return "; ".join(
            f"{node.number}: {node.core.replicas.statuses().get(group)}" for node in self.alive()
        )
