"""Find the shortest run that catches a planted defect: `PYTHONPATH=tests:src python -m sim.shortest
NAME …`, all without a name.

It tries the world and seed that are known (`sim.known_catches`) with few mishaps first, then seeds
of all worlds. What it prints goes there.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from time import process_time
from typing import Any

import msgspec
from sim.knobs import Knobs
from sim.known_catches import CAUGHT_BY, STORIES, TRIED, Known
from sim.mutant_runs import check_fault
from sim.mutants import MUTANTS, mutated

FEW = (2, 5, 8, 12, 18, None)  # mishaps; None: as many as the world usually has
SEEDS = 30
CPU_SECONDS = 4  # of one run: another that takes longer is not short


class Tried(msgspec.Struct):
    """The end of a run. `fault`: the message that caught the defect, or empty; `stale`: the defect
    does not fit the code."""

    cpu_seconds: float
    fault: str = ""
    stale: bool = False


def candidates(name: str) -> Iterator[Known]:
    """Yield runs that may catch it, short ones first."""
    if name in CAUGHT_BY:
        world, knobs, _ = CAUGHT_BY[name]
        yield from (Known(world, knobs, mishaps) for mishaps in FEW)
    for seed in range(SEEDS):
        for mishaps in (3, 10):
            yield from (Known(world, Knobs.draw(seed), mishaps) for world in TRIED)


def tried(name: str, known: Known, seconds: int) -> Tried:
    """Run it with the defect, without one where there is no name, in a process of its own. One that
    takes longer is stale."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds + int(process_time()), -1))
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(msgspec.json.encode(_tried(name, known)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(answer, type=Tried) if answer else Tried(0.0, stale=True)


def _tried(name: str, known: Known) -> Tried:
    began, fault = process_time(), ""
    with mutated(name) if name else nullcontext([]) as raised:
        try:
            known.run()
        except Exception as error:
            check_fault(error)
            fault = str(error).partition("\n")[0] or type(error).__name__
    return Tried(process_time() - began, fault, bool(raised))


def catches(name: str, known: Known, seconds: int) -> Tried | None:
    """Return the run that fails because of the defect; None if it passes, or fails without the
    defect too."""
    end = tried(name, known, seconds)
    if not end.fault or end.stale:
        return None
    sound = tried("", known, 10 * seconds)
    return None if sound.fault or sound.stale else end


def shown(known: Known) -> str:
    drawn: Any = (
        f"Knobs.draw({known.knobs.seed})"
        if known.knobs == Knobs.draw(known.knobs.seed)
        else known.knobs
    )
    return f"Known({known.world!r}, {drawn}{'' if known.mishaps is None else f', {known.mishaps}'})"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sim.shortest", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument(
        "--others", action="store_true", help="leave out the world and seed that are known"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=CPU_SECONDS,
        help="CPU seconds of one run, at most (default: %(default)s)",
    )
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    missed = 0
    for name in MUTANTS:
        if name in STORIES or (options.names and not any(part in name for part in options.names)):
            continue
        runs = (
            known
            for known in candidates(name)
            if not (options.others and name in CAUGHT_BY and known.knobs == CAUGHT_BY[name].knobs)
        )
        found = next(
            ((known, end) for known in runs if (end := catches(name, known, options.seconds))), None
        )
        missed += found is None
        said = (
            "no short run catches it"
            if found is None
            else f"{shown(found[0])},  # {found[1].cpu_seconds:.1f} s: {found[1].fault[:80]}"
        )
        print(f'"{name}": {said}', flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
