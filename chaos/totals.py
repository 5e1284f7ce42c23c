"""Totals of the simulation over many seeds: written by tests/sim/run.py, read for
docs/reliability.md."""

from __future__ import annotations

from collections import Counter

import msgspec


class Simulation(msgspec.Struct, kw_only=True):
    """Totals of all seeds. `faults` by class: mishaps, what the network and the store did, and
    deaths by a disk."""

    first_seed: int = 0
    seeds: int = 0
    failed: list[int] = []
    events: int = 0
    messages: int = 0
    simulated_hours: float = 0.0
    acknowledged: int = 0
    unknown: int = 0
    reads: int = 0
    tailed: int = 0
    terms: int = 0
    evicted: int = 0  # streams …
    returned: int = 0
    seconds: float = 0.0
    faults: dict[str, int] = {}

    def take(self, more: Simulation) -> None:
        """Add the findings of other seeds, but for the number of seeds."""
        for name in self.__struct_fields__:
            if name not in ("first_seed", "seeds", "faults"):
                setattr(self, name, getattr(self, name) + getattr(more, name))
        self.faults = dict((Counter(self.faults) + Counter(more.faults)).most_common())
