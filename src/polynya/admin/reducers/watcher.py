"""Metrics of reducers: a look at their faults now and then, on the core that leads the meta group."""

from __future__ import annotations

import logging
from collections.abc import Callable

from polynya.base.errors import PolynyaError
from polynya.jobs import Failures, Rest, repeat
from polynya.observability.metrics import Samples, label
from polynya.service.reducers.registry import Reducers

log = logging.getLogger("polynya.reducers")

LOOK_SECONDS = 15.0


class ReducerWatcher:
    """The last look at the reducers, and the counts of this core. `leads` reports whether this core
    leads the meta group."""

    def __init__(self, reducers: Reducers, leads: Callable[[], bool]) -> None:
        self._reducers = reducers
        self._leads = leads
        self._looked: Samples = {}

    def samples(self) -> Samples:
        counts = self._reducers.counts
        return {
            "polynya_reducer_publishes_total": counts.publishes,
            "polynya_reducer_publish_bytes_total": counts.publish_bytes,
            "polynya_reducer_states_total": counts.states,
            **self._looked,
        }

    async def run(self) -> None:
        """Look until cancelled."""
        failures = Failures(
            log,
            "the reducers' metrics could not be read; retrying",
            PolynyaError,
            level=logging.INFO,
        )
        await repeat(self.look, LOOK_SECONDS, failures)

    async def look(self) -> Rest:
        """Look once, and return the seconds to rest. Raises PolynyaError; then the last metrics
        stay."""
        if not self._leads():
            self._looked = {}
            return Rest(LOOK_SECONDS)
        found: Samples = {}
        for name, bound in (await self._reducers.current()).items():
            found[label("polynya_reducer_stopped", reducer=name)] = int(bool(bound.binding.stopped))
            found[label("polynya_reducer_faults", reducer=name)] = sum(
                reducer == name and fault.revision == bound.binding.revision
                for (reducer, _), fault in self._reducers.faults.items()
            )
        self._looked = found
        return Rest(LOOK_SECONDS)
