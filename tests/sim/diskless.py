"""Worlds of the swarm in which every stream is diskless from its creation on; they always have an
object store."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import structs
from sim.store import Weather
from sim.swarm import Swarm, SwarmEpisode

from polynya.base import levels

ALL_STREAMS = 3  # thirds of them
DELAY = (0.001, 0.01)  # seconds, of the store in worlds that the seed draws without one


class DisklessSwarm(SwarmEpisode):
    """One run; the profile of a stream never changes."""

    def __init__(self, *drawn: Any, **more: Any) -> None:
        super().__init__(*drawn, **more)
        self.knobs = structs.replace(
            self.knobs,
            world={name: value for name, value in self.knobs.world.items() if name != "switches"}
            | {"diskless": ALL_STREAMS},
        )
        self.world.release = levels.LEVEL

    def _draw(self, random: Random) -> Swarm:
        drawn = super()._draw(random)
        calm = Weather(away=0.02, untold=0.02, conflict=0.02, stale=0.5, delay=DELAY)
        return structs.replace(drawn, weather=drawn.weather or calm)
