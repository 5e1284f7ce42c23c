"""Raise the feature level of groups once every node of the cluster supports it (base/levels.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from polynya.base import levels
from polynya.engine.replicated import ReplicatedEngine
from polynya.stream.features.settings.commands import SetLevel
from polynya.stream.replies import Reply

LOOK_SECONDS = 1.0
log = logging.getLogger("polynya.levels")


class FeatureLevels:
    """Raises the feature levels of the groups that one core leads. `members` returns the nodes of
    the cluster, empty until known. `known_by` returns the level that a node announced, 0 before it
    did. `works_at` receives the highest level of the local groups, so that the transport rejects
    nodes below it."""

    def __init__(
        self,
        core: ReplicatedEngine,
        members: Callable[[], Iterable[int]],
        known_by: Callable[[int], int],
        works_at: Callable[[int], None],
    ) -> None:
        self._core, self._members, self._known_by, self._works_at = (
            core,
            members,
            known_by,
            works_at,
        )
        self._asked: dict[int, int] = {}  # group -> proposed level

    def look(self) -> None:
        """Propose a higher level to each led group that can take it; called every
        `LOOK_SECONDS`."""
        core = self._core
        self._works_at(
            max(
                (group.machine.counters.level for group in core.core_replicas.groups.values()),
                default=1,
            )
        )
        for number, machine in core.led.items():
            target = (
                self.target(core.members[number].raft.configuration.members)
                if machine.counters.level < levels.LEVEL
                else 0
            )
            if machine.counters.level < target and self._asked.get(number) != target:
                self._asked[number] = target
                core.propose(
                    number,
                    SetLevel(target),
                    lambda reply, number=number: self._answered(number, reply),  # type: ignore[misc]
                )

    def target(self, replicas: Iterable[int]) -> int:
        """Return the highest level that all members and `replicas` support, or 0 while one has not
        announced it. `replicas` count too, because the local view of the members may be stale."""
        members = set(self._members())
        others = [
            self._known_by(node) for node in members.union(replicas) if node != self._core.node
        ]
        return min([levels.LEVEL, *others]) if members else 0

    def lowest(self) -> int:
        """Return the lowest level of the groups led here. A replica under construction may not have
        applied its group's level."""
        return min(
            (machine.counters.level for machine in self._core.led.values()), default=levels.LEVEL
        )

    def _answered(self, number: int, reply: Reply | BaseException) -> None:
        level = self._asked.pop(number)
        if isinstance(reply, Reply) and not reply.code:
            log.info(
                "a group was raised to a new feature level",
                extra={"of_group": number, "works_at": level},
            )
