"""Chaos tests: three real nodes under load and faults, and a checker of the clients' responses.
`python -m chaos --seed 7 --seconds 120`, or `make chaos`.

Exit code 1: something was lost, came twice, out of order or too late, or the cluster did not
get well again. Everything that is started is taken away at the end, after Ctrl-C, and when this
process is killed; the logs of a run that failed stay, and their folder is named."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from chaos import network
from chaos.guard import Guard
from chaos.run import Options, Outcome, Run

SHOWN = 20  # of what was wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--seed",
        type=int,
        default=int(time.time()) % 1_000_000,
        help="default: one of its own each time",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="of episodes (default: 120); 0: as many as --episodes",
    )
    parser.add_argument("--episodes", type=int, default=0, help="at most so many")
    parser.add_argument(
        "--once",
        action="store_true",
        help="run each fault that this machine supports exactly once, whatever time it takes",
    )
    parser.add_argument("--cores", type=int, default=1, help="of each node")
    parser.add_argument(
        "--only",
        default="",
        help="faults with one of these in their names, with commas between them",
    )
    parser.add_argument(
        "--loopback", action="store_true", help="no network namespaces, though they work"
    )
    parser.add_argument(
        "--soak",
        action="store_true",
        help="slower writers, quiet times, and nothing of the nodes may grow",
    )
    parser.add_argument(
        "--moves",
        action="store_true",
        help="in each episode nodes join, are drained, replaced or removed, or groups move",
    )
    parser.add_argument(
        "--acts", type=float, default=0.0, help="that in such a share of the episodes"
    )
    parser.add_argument(
        "--pace", type=float, default=1.0, help="faults last so long, of what they last otherwise"
    )
    parser.add_argument(
        "--pause", type=float, help="seconds between two appends of a writer (default: 0.03)"
    )
    parser.add_argument(
        "--s3",
        action="store_true",
        help="a real S3 server as object store, and a proxy before it that fails",
    )
    parser.add_argument(
        "--lose-all",
        action="store_true",
        help="in the end all disks are lost, and all is restored from the object store",
    )
    parser.add_argument(
        "--no-kafka", action="store_true", help="no Kafka producers, consumers and group"
    )
    parser.add_argument("--keep", action="store_true", help="leave the logs, whatever is found")
    parser.add_argument("--report", type=Path, help="write what was found there, as JSON")
    given = parser.parse_args()
    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        episodes=given.episodes,
        once=given.once,
        cores=given.cores,
        only=given.only,
        namespaces=not given.loopback,
        soak=given.soak,
        acts=1.0 if given.moves else given.acts,
        pace=given.pace,
        s3=given.s3,
        lose_all=given.lose_all,
        kafka=not given.no_kafka,
        pause=given.pause or (0.3 if given.soak else 0.03),
    )
    outcome = run_guarded(options, keep=given.keep)
    if given.report is not None:
        given.report.write_bytes(
            msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n"
        )
    return 1 if outcome.wrong else 0


def run_guarded(options: Options, *, keep: bool = False) -> Outcome:
    """Run with everything cleaned up at the end. Raises KeyboardInterrupt."""
    print(f"chaos: seed {options.seed}; again: make chaos SEED={options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="polynya-chaos-"))
    name = f"pch{os.getpid()}"
    if options.namespaces:
        network.isolate()
    guard = Guard(name, folder)
    signal.signal(signal.SIGTERM, _interrupted)
    # also in the background, where a shell has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcome: Outcome | None = None
    try:
        outcome = asyncio.run(Run(options, folder, name).run())
        _say(outcome)
    finally:
        keep = keep or outcome is None or bool(outcome.wrong)
        guard.finish(keep=keep)
        if keep:
            print(f"the logs are in {folder}", flush=True)
    return outcome


def _say(outcome: Outcome) -> None:
    by_fault = Counter(episode.fault for episode in outcome.episodes)
    print(
        f"seed {outcome.seed}: {len(outcome.episodes)} episodes of {len(by_fault)} faults in "
        f"{outcome.seconds:.0f} s on {outcome.network}: "
        f"{outcome.acknowledged} appends acknowledged, {outcome.refused} refused, "
        f"{outcome.unknown} with an unknown outcome, {outcome.reads} "
        f"reads, {outcome.tailed} records by tails, {outcome.kafka_records} by Kafka's producers, "
        f"{outcome.commits} commits of its group, {outcome.compacted} records dropped by key "
        f"compaction, {outcome.transactions} transactions committed, {outcome.switches} changes of a "
        f"profile; the longest time without an append to some "
        f"stream was {outcome.longest_pause:.1f} s, chaos "
        f"itself stood still for {outcome.stood_still:.1f} s at most"
    )
    for sample in outcome.samples[-3:]:
        print(
            f"  node {sample.node} in the end: {sample.rss >> 20} MiB of memory, {sample.fds} "
            f"descriptors, {sample.journal >> 20} MiB of journal, "
            f"{sample.snapshots >> 20} MiB of snapshots"
        )
    for fault, why in outcome.skipped.items():
        print(f"  skipped: {fault}: {why}")
    for wrong in outcome.wrong[:SHOWN]:
        print(f"WRONG: {wrong}")
    if len(outcome.wrong) > SHOWN:
        print(f"… and {len(outcome.wrong) - SHOWN} more")
    print(
        "FAILED" if outcome.wrong else "nothing acknowledged was lost, out of order or twice",
        flush=True,
    )


def _interrupted(number: int, _: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
