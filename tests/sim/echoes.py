"""Commands that come to the log again: as those of a leader, coordinator or writer that is not told
the outcome and repeats itself, sooner or much later. Each has a number or an epoch by which the
rules know it, so none changes anything."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.commands import CommitOffsets
from polynya.stream.features.profiles.commands import CommitSlices
from polynya.stream.features.segments.commands import Rollover

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

KEPT = 400  # commands; the oldest go
SECONDS = 0.1  # between two echoes
KINDS = Rollover | CommitSlices | CommitOffsets


class Echoes:
    """Replays of commands in one world: it records commands and proposes them again."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._random = Random(f"echoes {episode.seed}")
        self._heard: deque[tuple[int, KINDS]] = deque(maxlen=KEPT)
        self.said = 0

    def hear(self, group: int, command: Command) -> None:
        """Record a command that a group accepts. A refusal is final and is not repeated."""
        if isinstance(command, KINDS):
            self._heard.append((group, command))

    async def run(self) -> None:
        """Say things again until the episode is over."""
        while not self._episode.over:
            await asyncio.sleep(self._random.expovariate(1 / SECONDS))
            if self._heard:
                self._say(*self._random.choice(self._heard))

    def _say(self, group: int, command: KINDS) -> None:
        leader = self._episode.world.leader(group)
        if leader is not None and not _is_new(leader, group, command):
            self.said += 1
            local = leader.engine.local
            leader.process.hand(lambda: local.propose(group, command, lambda reply: None))


def _is_new(leader: Node, group: int, command: KINDS) -> bool:
    """Report whether the command is a commit of the generation that still is: it may set offsets
    back, as a late request of a client does."""
    if not isinstance(command, CommitOffsets):
        return False
    known = leader.engine.local.machines[group].consumer_groups.get(command.id)
    return known is None or command.generation >= known.generation
