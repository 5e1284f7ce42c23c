"""A rolling upgrade from an older release to this one, under load: `python -m chaos.upgrade --from
REVISION`, or `make upgrade FROM=REVISION`.

Three nodes of the older release run under the clients of the chaos runs. Node 3 is upgraded.
Commands of both releases go to nodes of both, and leaderships move to and fro. Members of both
lose their data and get it from the other, and a backup is taken. Node 3 is downgraded, and then
all nodes are upgraded, one after the other.

At the end an older node joins again: it is refused if the level has risen, else the whole
cluster is downgraded. A read replica, where the older release has any, is upgraded first,
downgraded, and upgraded last: each release follows the other. Finally all disks are lost, and
everything is read from the object store of both releases (a folder, or a real S3 server with
`--s3`).

Exit code 1: an acknowledged record was lost, duplicated, out of order or too late, or something
was not as docs/cluster-howto.md#upgrade says."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from chaos import objects
from chaos.clients import Clients, Wrong, read_all
from chaos.guard import Guard
from chaos.history import FAIL, INFO, OK, check, differences
from chaos.mixed_cluster import REFUSED_SECONDS, MixedCluster, Options, Stuck
from chaos.releases import Release, by_itself, here, of_revision
from chaos.results import Upgraded
from chaos.upgrade_reader import UpgradeReader
from chaos.upgrade_transactions import UpgradeTransactions
from chaos.wire import Connection, Lost, Unsent

REFUSED = "log levels up to"
FLUSHED_SECONDS = 60.0
STREAMS = 6
TRANSACTION_LEVEL = 4  # the first that has Kafka's transactions
PARTS = (
    "readers", "commands", "leads", "wipes", "backups", "members", "back", "again", "transactions",
    "store",
)  # fmt: skip


class Upgrade(MixedCluster):
    """The upgrade of one cluster."""

    def __init__(
        self, old: Release, new: Release, folder: Path, name: str, options: Options
    ) -> None:
        parts = options.parts
        kafka = "transactions" in parts and not UpgradeTransactions.why_not(old)
        super().__init__(old, new, folder, name, options, kafka=kafka)
        self.hold, self.parts = options.hold, parts
        self.reader = UpgradeReader(self)
        self.found = Upgraded(revision=options.revision, levels=(old.level, new.level))
        self.transactions: UpgradeTransactions | None = None

    async def run(self) -> None:
        store: AbstractContextManager[dict[str, str]] = (
            objects.server() if self.options.s3 else nullcontext({})
        )
        with store as settings:
            await self._run(settings)

    async def _run(self, store: dict[str, str]) -> None:
        try:
            await self._prepare(store)
            await self.well("three nodes of the old release")
            self.clients = Clients(
                self.cluster.addresses,
                [f"upgrade/s{number}" for number in range(STREAMS)],
                self.options.seed,
                time.monotonic,
            )
            await self.clients.create()
            self.clients.start(pause=0.1)
            await self._start_transactions()
            await asyncio.sleep(self.hold)
            await self._upgrade()
            await self.clients.stop()
            await self._judge_transactions()
            final = await self._judge()
            if "store" in self.parts and not self.wrong:
                self.say("all disks are lost")
                await self._lose_all(final)
        finally:
            if self.transactions is not None:
                self.transactions.close()
            await self.cluster.close()

    # --- transactions -----------------------------------------------------------------------------

    async def _start_transactions(self) -> None:
        if self.cluster.kafka:
            made = UpgradeTransactions(self.cluster, self.old, self.new, self.options.seed)
            self.transactions = made
            await made.start()
        elif "transactions" in self.parts:
            self.say(f"  no transactions: {UpgradeTransactions.why_not(self.old)}")

    async def _refused_transactions(self) -> None:
        """Check that no broker begins a transaction before the last node is new."""
        if self.transactions is not None and self.old.level < TRANSACTION_LEVEL:
            await self.transactions.check_refused()

    async def _serve_transactions(self) -> None:
        if self.transactions is not None and self.new.level >= TRANSACTION_LEVEL:
            await self.transactions.check_work()

    async def _judge_transactions(self) -> None:
        if self.transactions is None:
            return
        await self.transactions.finish()
        for wrong in self.transactions.wrong:
            self.note(wrong)
        found = self.transactions.found
        self.found.transactions = 0 if found is None else found.committed()
        self.say(f"  {self.found.transactions} transactions committed")

    async def _prepare(self, store: dict[str, str]) -> None:
        async def settings() -> list[str]:
            return [f'{name} = "{value}"' for name, value in store.items()]

        await self.cluster.prepare(None, settings)
        for node in self.cluster.nodes.values():
            node.source = self.old.source
            node.start()

    async def _upgrade(self) -> None:
        """Run all of it; raise nothing: what does not come about is written down, and ends it."""
        steps: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
            (
                "readers",
                "a read replica of the old release comes, and gets the new one first",
                self.reader.come,
            ),
            ("", "node 3 gets the new release", lambda: self.change(3, self.new)),
            ("transactions", "a mixed cluster refuses transactions", self._refused_transactions),
            ("commands", "the commands of both", self._commands),
            ("leads", "leads go to and fro", self._leads),
            ("wipes", "a new and an old member lose their data", self._wipes),
            ("backups", "a backup", self._backups),
            ("members", "a node comes and goes", self._membership),
            ("back", "node 3 goes back", lambda: self.go_back(3)),
            ("transactions", "transactions stay refused", self._refused_transactions),
            ("readers", "the read replica goes back", self.reader.go_back),
            ("back", "node 3 gets the new release again", lambda: self.change(3, self.new)),
            ("", "node 2 gets the new release", lambda: self.change(2, self.new)),
            ("leads", "leads go to and fro", self._leads),
            ("", "node 1 gets the new release", lambda: self.change(1, self.new)),
            ("readers", "the read replica gets the new release last", self.reader.change_last),
            ("", "the level is that of the new release", self._risen),
            ("transactions", "transactions work", self._serve_transactions),
            ("again", "the old release comes again", self._come_again),
            ("readers", "the read replica gets a vote", self.reader.vote),
        ]
        for part, what, step in steps:
            if part and part not in self.parts:
                continue
            self.say(what)
            try:
                await step()
                await asyncio.sleep(self.hold / 4)
            except (Stuck, Wrong, Lost, Unsent, RuntimeError) as stuck:
                self.note(f"{what}: {stuck}")
                return
            self.found.steps.append(what)

    # --- the steps --------------------------------------------------------------------------------

    async def _commands(self) -> None:
        """Give commands of both releases to nodes of both."""
        for release, number in self.pairs():
            server = self.cluster.http_of(number)
            said = await release.run("cluster", "status", server=server)
            self.must(said, f"{release.name} 'cluster status' at node {number}")
            if release is self.new and self.old.level > 1 and "release" not in said.text:
                self.note(f"'cluster status' says nothing of the upgrade: {said.text}")
            await self.retry(release, number, "cluster", "health")
            if await release.knows("cluster", "drain"):
                other = 1 + number % 3
                for words in (("drain", str(other), "--wait"), ("uncordon", str(other))):
                    await self.retry(release, number, "cluster", *words)
            await self.retry(release, number, "info", "upgrade/s0")

    async def _leads(self) -> None:
        """Let each node lead some groups once, at the word of each release."""
        if not await self.old.knows("cluster", "transfer"):
            self.say("  the old release cannot")
            return
        for target in (3, 1, 2):
            for release in (self.old, self.new):
                for group in (0, 5) if release is self.old else (2, 7):
                    await self.retry(
                        release,
                        1 + group % 3,
                        "cluster",
                        "transfer",
                        str(group),
                        "--to",
                        str(target),
                        "--wait",
                    )
            await asyncio.sleep(self.hold / 8)
        await self.well("all after leads went to and fro")

    async def _wipes(self) -> None:
        reader = self.reader.number
        for number in (3, 1, reader) if reader else (3, 1):
            node = self.cluster.nodes[number]
            await self.end(node)
            node.wipe()
            node.start()
            await self.well(f"node {number} without its data")
            said = node.said()
            self.say(
                f"  node {number} has all again ({said.count('snapshot')} lines of its log name "
                "snapshots)"
            )

    async def _backups(self) -> None:
        """Back up with each release at each node. The new release verifies and restores each
        backup, and the content must match the reads before."""
        if not await self.old.knows("backup"):
            self.say("  the old release cannot")
            return
        for release, number in self.pairs():
            location = self.folder / f"backup-{release.name}-{number}"
            before = {stream: await self.whole(number, stream) for stream in self.clients.streams}
            words = ("backup", str(location), "--server", self.cluster.http_of(number))
            await self.retry(release, number, *words)
            self.must(
                await self.new.run("verify", str(location)),
                f"'verify' of the backup of {release.name} at node {number}",
            )
            await self._restored(location, before)

    async def _restored(self, location: Path, before: dict[str, list[str]]) -> None:
        data = self.folder / f"{location.name}-data"
        self.must(
            await self.new.run("restore", str(location), "--data", str(data)),
            f"'restore' of {location.name}",
        )
        async with by_itself(self.new, data) as address_of:
            found = {stream: await read_all(Connection(*address_of), stream) for stream in before}
        for stream, records in before.items():
            if found[stream][: len(records)] != records:
                self.note(
                    f"{location.name}: {stream} has {len(found[stream])} records, not the "
                    f"{len(records)} of before"
                )

    async def _membership(self) -> None:
        """Add a fourth node of each release by a command of the other, give it a group, and remove
        it by a command of the new one."""
        if not await self.old.knows("cluster", "add"):
            self.say("  the old release cannot")
            return
        cluster = self.cluster
        for by, release in ((self.old, self.new), (self.new, self.old)):
            node = await cluster.join()
            node.source, number = release.source, str(node.number)
            locations = (
                "--peer",
                cluster.peer_of(node.number),
                "--http",
                cluster.http_of(node.number),
            )
            await self.retry(by, 1, "cluster", "add", "--id", number, *locations, "--no-rebalance")
            node.start()
            await self.well(
                f"node {number} of the {release.name} release, let in by a command of the {by.name}"
            )
            await self.retry(by, 3, "cluster", "move", "2", "--from", "1", "--to", number, "--wait")
            await self.retry(by, 3, "cluster", "transfer", "2", "--to", number, "--wait")
            await self.retry(by, node.number, "cluster", "rebalance", "--wait")
            await self.well(f"node {number} with groups of its own")
            cluster.leaving[node.number] = node.starts
            await self.retry(self.new, 2, "cluster", "remove", number, "--wait")
            code = await node.ended(REFUSED_SECONDS)
            if code not in (0, 78):
                self.note(
                    f"node {number} ends with {code} when it is removed:\n{node.said()[-2000:]}"
                )
            cluster.let_go(node.number)
            await self.well(f"three nodes after node {number} was removed")

    async def _risen(self) -> None:
        await self.level(self.new.level)

    async def _come_again(self) -> None:
        node = self.cluster.nodes[2]
        if self.old.level >= self.new.level and self.old.protocols[1] >= self.new.protocols[0]:
            for number in self.cluster.numbers:
                await self.change(number, self.old)
            return
        await self.end(node)
        node.source = self.old.source
        node.start()
        try:
            await self.until(
                lambda: not node.is_alive or REFUSED in node.said(),
                "the old release to be refused",
                REFUSED_SECONDS,
            )
        finally:
            self.say(
                "  it says: "
                + " | ".join(
                    line
                    for line in node.said().splitlines()
                    if REFUSED in line or line.startswith("polynya:")
                )[:600]
            )
        if node.is_alive:
            await self.end(node)
        node.source = self.new.source
        node.start()
        await self.well("node 2 with the new release again")

    async def _lose_all(self, final: dict[str, list[str]]) -> None:
        """Destroy the disks of all nodes, once everything is in packs; then all of it must be read
        from a cluster made of the store alone."""
        cluster = self.cluster
        hot = [-1]

        async def flushed() -> bool:
            hot[0] = await cluster.hot_bytes()
            return not hot[0]

        try:
            await self.until_async(
                flushed,
                lambda: f"everything to be in packs: {hot[0]} bytes are not",
                FLUSHED_SECONDS,
            )
            await asyncio.gather(*(node.kill() for node in cluster.nodes.values()))
            cluster.begin_anew()
            configs = [f"--config={node.config}" for node in cluster.nodes.values()]
            self.must(
                await self.new.run("restore", "--from-store", "--take-over", *configs),
                "'restore' from the object store",
            )
            for node in cluster.nodes.values():
                node.source = self.new.source
                node.start()
            await self.well("what was restored from the object store")
            for number, (stream, records) in enumerate(final.items()):
                found = await self.clients.read_all(
                    cluster.numbers[number % len(cluster.numbers)], stream
                )
                for wrong in differences(found, records):
                    self.note(f"{stream}, from the object store: {wrong}")
            self.found.restored = sum(map(len, final.values()))
            self.say(f"  {self.found.restored} records are there again")
        except (Stuck, Wrong, Lost, Unsent) as stuck:
            self.note(f"from the object store: {stuck}")

    async def _judge(self) -> dict[str, list[str]]:
        """Read every stream fully by each node, compare the reads, and run the checker."""
        final: dict[str, list[str]] = {}
        for stream in self.clients.streams:
            for number in self.cluster.numbers:
                try:
                    records = await self.clients.read_all(number, stream)
                except (Lost, Unsent, Wrong) as fault:
                    self.note(f"{stream} cannot be read by node {number} in the end: {fault!r}")
                    continue
                if final.setdefault(stream, records) != records:
                    self.note(f"{stream}: node {number} has not what another has in the end")
        await self.clients.finish(final, 30.0)
        history = self.clients.history
        for wrong in [*self.clients.wrong, *check(history, final), *self.cluster.odd_lines()]:
            self.note(wrong)
        found, pause = self.found, self.clients.longest_pause()
        found.acknowledged, found.refused, found.unknown = map(history.count, (OK, FAIL, INFO))
        counts = ", ".join(f"{history.count(each)} {each}" for each in (OK, FAIL, INFO))
        tailed = sum(len(piece.records) for tail in history.tails for piece in tail.pieces)
        self.say(
            f"appends: {counts}; {len(history.reads)} reads, {tailed} records by tails; the "
            "longest time without an append to some stream was "
            f"{pause:.1f} s"
        )
        found.reads, found.tailed, found.longest_pause = len(history.reads), tailed, pause
        return final


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.upgrade", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument(
        "--from",
        dest="revision",
        required=True,
        help="the older release, a git revision of this checkout",
    )
    parser.add_argument(
        "--kill", action="store_true", help="nodes are killed; else they get SIGTERM"
    )
    parser.add_argument(
        "--s3", action="store_true", help="a real S3 server as object store; else a folder"
    )
    parser.add_argument(
        "--only",
        metavar="PARTS",
        default=",".join(PARTS),
        help="what is done beside the upgrade itself, with commas: %(default)s",
    )
    parser.add_argument(
        "--hold",
        type=float,
        default=16.0,
        help="seconds with nodes of the old release alone; other waits in proportion",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="leave the logs, whatever is found")
    parser.add_argument("--report", type=Path, help="write what was found there, as JSON")
    given = parser.parse_args()
    parts = [part for part in given.only.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    folder = Path(tempfile.mkdtemp(prefix="polynya-upgrade-"))
    name = f"pup{os.getpid()}"
    guard = Guard(name, folder)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    keep = True  # until it has come to its end, and all was well
    try:
        old, new = of_revision(given.revision, folder), here()
        print(
            f"from {given.revision} (level {old.level}, protocols {old.protocols}) to this (level "
            f"{new.level}, protocols {new.protocols})"
        )
        run = Upgrade(
            old,
            new,
            folder,
            name,
            Options(given.kill, given.hold, given.seed, given.s3, frozenset(parts), given.revision),
        )
        asyncio.run(run.run())
        if given.report is not None:
            run.found.seconds = time.monotonic() - run.began
            run.found.wrong = list(run.wrong)
            given.report.write_bytes(msgspec.json.encode(run.found))
        keep = given.keep or bool(run.wrong)
    finally:
        guard.finish(keep=keep)
        if keep:
            print(f"the logs are in {folder}", flush=True)
    print(
        "FAILED" if run.wrong else "nothing acknowledged was lost, out of order or twice",
        flush=True,
    )
    return 1 if run.wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
