"""Raising the level at which groups work, once every node of the cluster knows it (base/levels.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from polynya.base import levels
from polynya.engine.replicated import ReplicatedEngine
from polynya.stream.commands import SetLevel
from polynya.stream.replies import Reply

LOOK_SECONDS = 1.0
log = logging.getLogger("polynya.levels")


class FeatureLevels:
    """Of one core. `members`: the nodes of the cluster, none before they are known. `known_by` says what a node has announced, 0: nothing yet.
    `works_at` is told of the highest level of a group here, so that a node that does not know it is not let in any more."""

    def __init__(
        self,
        core: ReplicatedEngine,
        members: Callable[[], Iterable[int]],
        known_by: Callable[[int], int],
        works_at: Callable[[int], None],
    ) -> None:
        self._core, self._members, self._known_by, self._works_at = core, members, known_by, works_at
        self._asked: dict[int, int] = {}  # group -> the level that is being proposed

    def look(self) -> None:
        """Every now and then."""
        core = self._core
        self._works_at(max((group.machine.level for group in core.shard.groups.values()), default=1))
        for number, machine in core.led.items():
            target = self.target(core.members[number].raft.configuration.members) if machine.level < levels.LEVEL else 0
            if machine.level < target and self._asked.get(number) != target:
                self._asked[number] = target
                core.propose(number, SetLevel(target), lambda reply, number=number: self._answered(number, reply))  # type: ignore[misc]

    def target(self, replicas: Iterable[int]) -> int:
        """What all know: 0 while a node has not said. Those that apply the group's log count, too: what this core knows of the cluster may be old."""
        members = set(self._members())
        others = [self._known_by(node) for node in members.union(replicas) if node != self._core.node]
        return min([levels.LEVEL, *others]) if members else 0

    def lowest(self) -> int:
        """Of the groups led here: a replica that is only being made has not heard of its group's."""
        return min((machine.level for machine in self._core.led.values()), default=levels.LEVEL)

    def _answered(self, number: int, reply: Reply | BaseException) -> None:
        level = self._asked.pop(number)
        if isinstance(reply, Reply) and not reply.code:
            log.info("a group works at a new level", extra={"of_group": number, "works_at": level})
