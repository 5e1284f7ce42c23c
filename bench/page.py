"""Measure the scenarios of docs/benchmarks.md and write the page, in parts: `python -m bench.page
--seconds 1500`.

Scenarios without a result of the present source come first, in the order of the page. One that was
measured on this source on a quiet machine stays as it is, so the same command goes on where a run
stopped; one that does not fit into the rest of the time is left for the next run. What a machine
lacks is named and skipped. Results of a busy machine are refused (`bench._results`), and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import report
from bench._results import FOLDER, load
from chaos.checkout import source
from chaos.quiet import LOAD_BEFORE

ROOT = Path(__file__).parent.parent


class Plan(NamedTuple):
    """The plan of a scenario's measurement. `seconds`: approximate duration on two quiet cores,
    without peers that a machine may lack; `needs`: programs in PATH."""

    scenario: str
    command: str
    seconds: int
    needs: tuple[str, ...] = ()


PLANS = (
    Plan(
        "compare_multi_stream",
        "compare multi-stream --servers polynya,rust-wal,node-memory --rounds 4 --seconds 8",
        150,
        ("ursula-bench", "durable-streams-server", "node"),
    ),
    Plan("bulk", "bulk --rounds 2 --mib 256 --read-seconds 2", 60),
    Plan(
        "bulk_three", "bulk --nodes 3 --servers polynya --rounds 2 --mib 128 --read-seconds 2", 60
    ),
    Plan(
        "clusters",
        "clusters --servers polynya,ursula,floor --rounds 4 --seconds 6",
        180,
        ("ursula-bench", "ursula"),
    ),
    Plan("wrk", "wrk --rounds 3", 150, ("wrk",)),
    Plan("nats", "nats", 150, ("nats-server",)),
    Plan("kafka_1", "kafka --rounds 3 --megabytes 150 --paced 10", 240, ("java", "mvn")),
    Plan("transactions", "transactions --rounds 3 --seconds 8", 480, ("java", "mvn")),
    Plan("kafka_idle", "kafka_idle --seconds 20", 60),
    Plan("failover", "failover --seconds 6 kill term", 90),
    Plan("mixed", "mixed --seconds 8", 90),
    Plan(
        "compare_fan_out",
        "compare fan-out --subscribers 1000 --servers polynya,rust-wal --rounds 3 --seconds 8",
        120,
        ("durable-streams-server",),
    ),
    Plan(
        "compare_catch_up",
        "compare catch-up --servers polynya,rust-wal --rounds 3 --seconds 4",
        90,
        ("durable-streams-server", "wrk"),
    ),
    Plan("idle_streams", "idle_streams", 120),
    Plan("compaction", "compaction --mb 512 --repeat 3", 120),
    Plan("table_workers", "table_workers --rounds 3 --mb 96", 150),
    Plan("table_freshness", "table_freshness --seconds 300", 400),
)


def is_current(scenario: str, present: str) -> bool:
    """Report whether a result of this source from a quiet machine exists."""
    if not (FOLDER / f"{scenario}.json").exists():
        return False
    result = load(scenario)
    return (
        "conditions" in result
        and not result["busy"]
        and result.get("source") == present
        and not present.endswith("-dirty")
    )


def missing(plan: Plan) -> str:
    """Return the programs that a scenario needs and this machine lacks."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return ", ".join(each for each in plan.needs if shutil.which(each, path=path) is None)


def measure(plans: Sequence[Plan], seconds: float) -> list[str]:
    """Measure what fits into the time; return the scenarios that failed."""
    deadline, failed = time.monotonic() + seconds, []
    environment = os.environ | {
        LOAD_BEFORE: f"{os.getloadavg()[0]:.2f}",  # later the load is that of the scenario before
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
    }
    for plan in plans:
        if lacking := missing(plan):
            print(f"== {plan.scenario}: skipped, this machine lacks {lacking}", flush=True)
            continue
        if time.monotonic() + plan.seconds > deadline:
            print(
                f"== {plan.scenario}: left for another run, it takes {plan.seconds} s", flush=True
            )
            continue
        print(f"== {plan.scenario}: python -m bench.{plan.command} --save", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", *f"bench.{plan.command} --save".split()]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(plan.scenario)
        print(f"== {plan.scenario}: took {time.monotonic() - began:.0f} s", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [plan.scenario for plan in PLANS]
    parser.add_argument("--seconds", type=float, default=float("inf"), help="(default: all)")
    parser.add_argument("--only", default="", help=f"some of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="also what is of this source")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    options = parser.parse_args()
    only = list(filter(None, options.only.split(",")))
    if unknown := {*only} - {*names}:
        parser.error(f"--only: expected some of {', '.join(names)}, got {', '.join(unknown)}")
    present = source()
    plans = [
        plan
        for plan in PLANS
        if (not only or plan.scenario in only)
        and (options.again or not is_current(plan.scenario, present))
    ]
    if options.list:
        for plan in plans:
            lacking = f", lacks {missing(plan)}" if missing(plan) else ""
            print(f"{plan.scenario}: about {plan.seconds} s{lacking}")
        return 0
    failed = measure(plans, options.seconds)
    report.main()
    if failed:
        print(f"failed, or a busy machine: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
