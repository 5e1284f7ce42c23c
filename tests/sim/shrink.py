"""Shrink a failing seed: leave out steps and shorten waits while it still fails, and print the
rest as a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from sim.knobs import Knobs
from sim.swarm import Step, SwarmEpisode, run_swarm

Fails = Callable[[Sequence[Step]], bool]


def shrink(steps: Sequence[Step], fails: Fails) -> list[Step]:
    """Return a part of the schedule that fails, from which no single step can be left out. `steps`
    must fail."""
    known = _without_tail(list(steps), fails)
    size = max(1, len(known) // 2)
    while True:
        fewer = _fewer(known, size, fails)
        if size == 1 and fewer == known:
            return known
        known, size = fewer, max(1, size // 2)


def _fewer(steps: list[Step], size: int, fails: Fails) -> list[Step]:
    """Drop `size` steps at a time wherever the run still fails without them."""
    at = 0
    while at < len(steps):
        fewer = steps[:at] + steps[at + size :]
        if fewer and fails(fewer):
            steps = fewer
        else:
            at += size
    return steps


def _without_tail(steps: list[Step], fails: Fails) -> list[Step]:
    """Drop the steps after the failure, by halves first."""
    while len(steps) > 1 and fails(steps[: len(steps) // 2]):
        steps = steps[: len(steps) // 2]
    return steps


def shorten(steps: Sequence[Step], fails: Fails) -> list[Step]:
    """Return the same steps with rounder, shorter waits, where these fail as well."""
    known = list(steps)
    for number, step in enumerate(known):
        for after in (0.0, 0.5, 1.0):
            if after < step.after:
                shorter = [
                    *known[:number],
                    msgspec.structs.replace(step, after=after),
                    *known[number + 1 :],
                ]
                if fails(shorter):
                    known = shorter
                    break
    return known


def calmed(knobs: Knobs, fails: Callable[[Knobs], bool]) -> Knobs:
    """Reset as many knobs as possible to their defaults while the run still fails."""
    size = max(1, len(knobs.names()) // 2)
    while True:
        before, at = knobs, 0
        while at < len(names := knobs.names()):
            fewer = knobs.without(names[at : at + size])
            if fails(fewer):
                knobs = fewer
            else:
                at += size
        if size == 1 and knobs == before:
            return knobs
        size = max(1, size // 2)


def fault_of(seed: int, schedule: Sequence[Step] | None = None, knobs: Knobs | None = None) -> str:
    """Return the violated invariant of this run; empty if it passes."""
    try:
        run_swarm(seed, schedule=schedule, knobs=knobs)
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return ""


def shrunk(seed: int) -> tuple[Knobs, list[Step], str]:
    """Return the fewest knobs and the smallest schedule that were found for a seed that fails, and
    how that fails."""
    knobs = calmed(Knobs.draw(seed), lambda fewer: bool(fault_of(seed, knobs=fewer)))

    def fails(steps: Sequence[Step]) -> bool:
        return bool(fault_of(seed, steps, knobs))

    steps = shorten(shrink(SwarmEpisode(seed, knobs=knobs).schedule, fails), fails)
    return knobs, steps, fault_of(seed, steps, knobs)


def as_test(knobs: Knobs, steps: Sequence[Step], fault: str) -> str:
    """Format the run as a case for tests/replica/test_cluster_swarm.py."""
    lines = [
        f"    ({knobs!r}, [  # {fault.splitlines()[0][:100]}",
        *(f"        {step!r}," for step in steps),
        "    ]),",
    ]
    return "\n".join(lines)
