"""The simulated cluster from a shell: `make sim SEED=7`, or `make sim SEED=100 SEEDS=50`; exits
with 1 when a seed fails.

Each seed is one episode in a world drawn for it (sim/swarm.py). A seed that fails is shrunk to a
short schedule, which is printed as a test.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from time import perf_counter

import msgspec
from sim.chaos import Episode
from sim.compacted import CompactedEpisode
from sim.coordinated import CoordinatedEpisode
from sim.copies import Copies
from sim.diskless import DisklessSwarm
from sim.groups import GroupEpisode
from sim.kafka import KafkaEpisode
from sim.leased import LeasedSwarm
from sim.modern_groups import ModernEpisode
from sim.moves import Moves
from sim.planned import Planned
from sim.readers import Readers
from sim.reduced import ReducedEpisode
from sim.returns import Returns
from sim.shrink import as_test, shrunk
from sim.swarm import SwarmEpisode
from sim.switched import SwitchedEpisode
from sim.together import TogetherEpisode
from sim.transactional import TransactionEpisode

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.results import Simulation  # noqa: E402  (not a part of the package)

SHOWN = 25  # of the last events of an episode that failed
KINDS: dict[str, type[Episode]] = {  # of worlds that are not the swarm's, by option
    "readers": Readers, "returns": Returns, "moves": Moves, "copies": Copies, "planned": Planned,
    "kafka": KafkaEpisode, "groups": GroupEpisode, "members": ModernEpisode, "leased": LeasedSwarm,
    "switched": SwitchedEpisode, "diskless": DisklessSwarm,
    "coordinated": CoordinatedEpisode, "transactions": TransactionEpisode,
    "compacted": CompactedEpisode,
    "together": TogetherEpisode, "reduced": ReducedEpisode,
}  # fmt: skip


class Totals(Simulation):
    """The counted totals."""

    def add(self, episode: Episode) -> None:
        histories = episode.histories.values()
        self.seeds += 1
        self.messages += episode.world.sent
        self.simulated_hours += episode.seconds / 3600
        self.acknowledged += episode.acknowledged_count()
        self.unknown += sum(len(history.unknown) for history in histories)
        self.reads += sum(len(history.reads) for history in histories)
        self.terms += len(episode.world.leaders)
        self.evicted += episode.world.idled["Evict"]
        self.returned += episode.world.idled["Return"]
        counted = Counter(self.faults)
        if isinstance(episode, SwarmEpisode):
            self.events += episode.scheduled
            self.tailed += sum(len(content) // 8 for content in episode.tails.values())
            counted += episode.counts
        if episode.world.store is not None:
            counted += Counter(
                {f"store: {name}": count for name, count in episode.world.store.faults.items()}
            )
        world = episode.world
        counted += Counter({f"died {name}": count for name, count in world.crashes.items()})
        counted += Counter(
            {"message again": world.replayed, "no room on a way": world.lost_for_room}
        )
        self.faults = dict(counted)

    def summary(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in Counter(self.faults).most_common())
        return (
            f"{self.seeds} seeds from {self.first_seed} on, {len(self.failed)} failed; "
            f"{self.events:,} events, {self.messages:,} messages, "
            f"{self.simulated_hours:.2f} simulated hours in {self.seconds:.0f} s; "
            f"{self.acknowledged:,} appends acknowledged, {self.unknown:,} "
            f"with an unknown outcome, {self.reads:,} reads, {self.tailed:,} records by tails, "
            f"{self.terms:,} terms, {self.evicted:,} streams evicted, "
            f"{self.returned:,} returned\nfaults: {faults}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from that one on")
    parser.add_argument(
        "--moves",
        action="store_true",
        help="more nodes than replicas; groups move, nodes come and are lost",
    )
    parser.add_argument("--readers", action="store_true", help="the same, with read replicas")
    parser.add_argument(
        "--returns",
        action="store_true",
        help="groups move, and nodes lose their disks and come back under their numbers",
    )
    parser.add_argument("--copies", action="store_true", help="older images of disks are put back")
    parser.add_argument(
        "--planned",
        action="store_true",
        help="the product's planner moves groups, while nodes come, are removed and lost",
    )
    parser.add_argument("--kafka", action="store_true", help="Kafka's producers in the plain world")
    parser.add_argument("--groups", action="store_true", help="a consumer group in the plain world")
    parser.add_argument(
        "--members", action="store_true", help="a group of KIP-848 in the plain world"
    )
    parser.add_argument(
        "--leased", action="store_true", help="leased streams in the swarm's worlds"
    )
    parser.add_argument(
        "--switched", action="store_true", help="profiles change under all kinds of clients"
    )
    parser.add_argument(
        "--coordinated", action="store_true", help="transactions of Kafka and their coordinators"
    )
    parser.add_argument(
        "--diskless", action="store_true", help="all streams diskless in the swarm's worlds"
    )
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="transactions of Kafka, with a scripted coordinator",
    )
    parser.add_argument("--compacted", action="store_true", help="streams whose keys are compacted")
    parser.add_argument(
        "--together", action="store_true", help="appends to streams of several groups"
    )
    parser.add_argument(
        "--reduced", action="store_true", help="workers of a reducer, some of which lie at times"
    )
    parser.add_argument("--mishaps", type=int, default=25, help="in each episode, before all heals")
    parser.add_argument(
        "--plain", action="store_true", help="the same world for all: three nodes, no object store"
    )
    parser.add_argument(
        "--no-shrink", action="store_true", help="a seed that fails is not made small"
    )
    parser.add_argument("--quiet", action="store_true", help="no line for each seed")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="DIR",
        help="write the events of each seed there: what its checksum is of",
    )
    parser.add_argument("--report", type=Path, help="write what was found there, as JSON")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    began, totals = perf_counter(), Totals(first_seed=options.seed)
    for seed in range(options.seed, options.seed + options.seeds):
        totals = _alone(seed, options, totals)
    totals.seconds = perf_counter() - began
    if not (options.plain or _flag(options)):
        print(totals.summary())
    if options.report is not None:
        options.report.write_bytes(
            msgspec.json.format(msgspec.json.encode(totals), indent=1) + b"\n"
        )
    return 1 if totals.failed else 0


def _flag(options: argparse.Namespace) -> str:
    """Return the flag of a kind other than the swarm."""
    return next((name for name in KINDS if getattr(options, name)), "")


def _alone(seed: int, options: argparse.Namespace, totals: Totals) -> Totals:
    """Run a seed in a process that starts like that of every other seed: an episode's leftovers in
    memory would change the order in the next."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            _run(seed, options, totals)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(totals))
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    if not found:
        raise SystemExit(f"seed {seed}: its process ended without a result")
    return msgspec.msgpack.decode(found, type=Totals)


def _run(seed: int, options: argparse.Namespace, totals: Totals) -> None:
    flag = _flag(options)
    kind = KINDS.get(flag, Episode if options.plain else SwarmEpisode)
    episode = kind(seed, options.mishaps)
    began = perf_counter()
    try:
        checksum = episode.play()
    except Exception:
        _write_trace(episode, options.trace)
        totals.failed.append(seed)
        print("".join(f"  {event}\n" for event in episode.events[-SHOWN:]), end="")
        traceback.print_exc()
        print(f"turned: {episode.knobs}")
        print(
            f"seed {seed} FAILED; again: make sim SEED={seed}{f' ARGS=--{flag}' if flag else ''}",
            flush=True,
        )
        if type(episode) is SwarmEpisode and not options.no_shrink:
            print(as_test(*shrunk(seed)), flush=True)
        return
    _write_trace(episode, options.trace)
    totals.add(episode)
    if not options.quiet:
        print(
            f"seed {seed}: {episode.summary()} in {perf_counter() - began:.1f} s; {checksum[:16]}",
            flush=True,
        )


def _write_trace(episode: Episode, folder: Path | None) -> None:
    """Write the events, also those of an episode that failed: two runs of a seed can be
    compared."""
    if folder is not None:
        (folder / f"seed-{episode.seed}.txt").write_text("\n".join(episode.events))


if __name__ == "__main__":
    sys.exit(main())
