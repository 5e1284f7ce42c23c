"""Leased streams with short segments in the plain world and in the worlds of the swarm; and runs
that are recorded for TLC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sim import faults
from sim.chaos import Episode, History
from sim.echoes import Echoes
from sim.knobs import Knobs
from sim.segment_traces import Recorder, Step
from sim.swarm import SwarmEpisode

from polynya.base import levels
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.segments.rules import segments_of
from polynya.stream.parts import SegmentLimits
from polynya.stream.state.feature_level import level_of

RECORDS = 5  # of a segment
NAME = "test/a"
LEASED_LEVEL = level_of(Rollover)


class LeasedStreams(Episode):
    """Leased streams that roll over several times per second."""

    def __init__(self, *drawn: Any, **more: Any) -> None:
        super().__init__(*drawn, **more)
        self.world.release = levels.LEVEL
        self.world.segments = SegmentLimits(RECORDS, 0)

    async def _create(self, name: str) -> None:
        world, group = self.world, self.world.group_of(name)
        await world.wait_moving(
            lambda: all(
                node.engine.local.machines[group].counters.level >= LEASED_LEVEL
                for node in world.alive()
            )
        )
        await super()._create(name)

    def epochs(self) -> list[int]:
        """Return the numbers of the open segments of all leased streams."""
        machines = self.world.alive()[0].engine.local.machines.values()
        chains = [
            segments_of(stream)
            for machine in machines
            for stream in machine.directory.leased.values()
        ]
        return [chain.epoch for chain in chains if chain is not None]


class LeasedEpisode(LeasedStreams):
    """The plain world."""


class LeasedSwarm(LeasedStreams, SwarmEpisode):
    """A world of the swarm: object stores and disks that fail, streams that are evicted. Rollovers
    come to the log again."""

    def __init__(self, *drawn: Any, **more: Any) -> None:
        super().__init__(*drawn, **more)
        self.echoes = Echoes(self)
        self.world.heard = self.echoes.hear

    def clients(self) -> list[asyncio.Future[None]]:
        return [*super().clients(), asyncio.ensure_future(self.echoes.run())]


class TracedEpisode(LeasedEpisode):
    """One leased stream with few clients. Disks fill and machines fail, but no disk is lost: the
    specification has no such step."""

    def __init__(self, seed: int, mishaps: int = 8) -> None:
        super().__init__(seed, mishaps)
        self.streams = (NAME,)
        self.histories = {NAME: History(NAME)}
        self.choices = CALAMITIES
        self.recorder = Recorder(self.world, NAME)

    def play(self) -> str:
        with self.recorder.attached():
            return super().play()

    def steps(self) -> list[Step]:
        """Return what happened to the stream, as steps of the specification."""
        return self.recorder.steps()

    async def _create(self, name: str) -> None:
        await super()._create(name)
        await self.world.wait_equal()
        self.recorder.begin()

    def clients(self) -> list[asyncio.Future[None]]:
        work = (self._append(0), self._produce(0), self._read())
        return [asyncio.ensure_future(each) for each in work]


CALAMITIES: tuple[Callable[[Any], None], ...] = (
    Episode.kill,
    Episode.kill,
    Episode.power_cut,
    Episode.start,
    Episode.start,
    Episode.start,
    Episode.isolate,
    Episode.half_cut,
    Episode.heal,
    Episode.heal,
    Episode.disturb,
    Episode.fill,
    Episode.snapshot,
    Episode.hand_over,
    faults.FAULTS["pause"],
    faults.FAULTS["leader cut"],
)


def run_leased(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode in a world of the swarm. Raises AssertionError with the violated invariant."""
    return LeasedSwarm(seed, mishaps, knobs=knobs).play()
