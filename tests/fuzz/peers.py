"""Hostile messages to the peer ports, of a member and of strangers: two nodes of three serve a
writer, the third is an impostor (fuzz/impostor.py).

Despite every message the two survive, keep their acknowledged records, keep acknowledging, and
stay within their memory. They hold nothing of the impostor after it has gone."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import threading
import time
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
from fuzz.bytes import Outcome
from fuzz.cluster import GROUPS, FuzzCluster, fuzz_cluster
from fuzz.impostor import Impostor
from fuzz.play import silence
from fuzz.unauthenticated import Outsiders
from polling import wait_until

from polynya.transport import Hello

IMPOSTOR = 3
GROWTH_BYTES_MAX = 300 << 20  # of a core's memory, over what it had when it was started
GOING_ON_SECONDS = 30.0  # within these an append is acknowledged again
STREAMS = 4


class Writer:
    """Appends one record after the other to a few streams, through both nodes. `acknowledged`: by
    stream, in order."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.acknowledged: dict[str, list[str]] = {
            f"fuzz/s{number}": [] for number in range(STREAMS)
        }
        self.tried: dict[str, set[str]] = {name: set() for name in self.acknowledged}
        self.wrong: list[str] = []
        self.last = time.monotonic()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        for name in self.acknowledged:
            wait_until(
                lambda name=name: self._ask(0, name, "PUT", b"") in (200, 201),
                what="a stream to be made",
                pause=0.2,
            )
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._ends.wait(0.005):
            turn += 1
            name = f"fuzz/s{turn % STREAMS}"
            record = f"r{turn}"
            self.tried[name].add(record)
            status = self._ask(turn // STREAMS, name, "POST", json.dumps([record]).encode())
            if status in (200, 204):
                self.acknowledged[name].append(record)
                self.last = time.monotonic()
            elif status not in (0, 503):
                self.wrong.append(f"an append was answered with {status}")

    def _ask(self, turn: int, name: str, method: str, body: bytes) -> int:
        url = f"{self.urls[turn % len(self.urls)]}/v1/stream/{name}"
        request = Request(
            url, data=body or None, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urlopen(request, timeout=20) as answer:
                status: int = answer.status
                return status
        except HTTPException:
            return 0
        except OSError as error:
            return int(getattr(error, "code", 0))

    def check(self) -> list[str]:
        """List the records that are missing, duplicated or out of order, per node."""
        found: list[str] = []
        for url in self.urls:
            for name, acknowledged in self.acknowledged.items():
                seen = wait_until(
                    lambda url=url, name=name: _records(url, name),
                    what=f"{name} to be read",
                    seconds=60,
                    pause=0.2,
                )
                held = set(seen)
                found += [
                    f"{name} at {url}: {record} was acknowledged and is not there"
                    for record in acknowledged
                    if record not in held
                ]
                known = set(acknowledged)
                if [record for record in seen if record in known] != acknowledged:
                    found.append(
                        f"{name} at {url}: what was acknowledged is there twice, or in another "
                        "order"
                    )
                found += [
                    f"{name} at {url}: {record} was never sent"
                    for record in held - self.tried[name]
                ]
        return found


def _records(url: str, name: str) -> list[str] | None:
    seen: list[str] = []
    offset = "-1"
    try:
        while True:
            with urlopen(f"{url}/v1/stream/{name}?offset={offset}", timeout=20) as answer:
                seen += json.load(answer)
                offset = answer.headers["Stream-Next-Offset"]
                if answer.headers["Stream-Up-To-Date"]:
                    return seen
    except (OSError, HTTPException):
        return None


def fuzz_peers(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz the peer ports for a number of rounds, or for a time."""
    outcome = Outcome()
    with fuzz_cluster(folder) as cluster:
        cluster.stop(IMPOSTOR)
        cluster.wait_led()
        writer = Writer([cluster.url(1), cluster.url(2)])
        writer.start()
        try:
            asyncio.run(_Run(seed, cluster, writer, outcome).run(rounds, seconds))
        finally:
            writer.stop()
        outcome.wrong += writer.wrong[:5] + writer.check()[:5]
        outcome.counts["appends"] = sum(map(len, writer.acknowledged.values()))
    return outcome


class _Run:
    def __init__(self, seed: int, cluster: FuzzCluster, writer: Writer, outcome: Outcome) -> None:
        self.seed, self.cluster, self.writer, self.outcome = seed, cluster, writer, outcome
        self.cores = {number: cluster.cores(number) for number in cluster.nodes}
        self.memory = {
            core.pid: core.memory_info().rss for cores in self.cores.values() for core in cores
        }
        self.files = {core.pid: core.num_fds() for cores in self.cores.values() for core in cores}

    async def run(self, rounds: int, seconds: float) -> None:
        addresses = {number: self.cluster.peers[number] for number in self.cluster.nodes}
        tls = self.cluster.tls(IMPOSTOR)
        own = Hello(
            4, 4, self.cluster.cluster, 1, GROUPS, IMPOSTOR, 0, 1, secrets.token_hex(8), "0", 1
        )
        first = Impostor(random.Random(f"{self.seed}"), own, addresses, tls)
        other = await first.learn(1)
        own = Hello(
            4,
            4,
            other.cluster,
            other.history,
            other.groups,
            IMPOSTOR,
            0,
            1,
            own.start,
            other.release,
            other.level,
            other.works_at,
        )
        impostor = Impostor(random.Random(f"{self.seed}-impostor"), own, addresses, tls)
        outsiders = Outsiders(random.Random(f"{self.seed}-strangers"), addresses, own)
        impostor.listen(self.cluster.peers[IMPOSTOR])
        end, number = time.monotonic() + seconds, 0
        try:
            while (number < rounds or time.monotonic() < end) and not self.outcome.wrong:
                number += 1
                impostor.chance = random.Random(f"{self.seed}-{number}")
                outsiders.chance = random.Random(f"{self.seed}-{number}-strangers")
                await asyncio.to_thread(self._learn, impostor)
                await asyncio.gather(*(impostor.say() for _ in range(6)))
                await outsiders.come()
                await asyncio.to_thread(self._look, number)
        finally:
            await impostor.close()
            await outsiders.close()
            self.outcome.counts += impostor.counts + outsiders.counts
            self.outcome.counts["rounds"] = number
        if not self.outcome.wrong:
            await asyncio.to_thread(self._rest)

    def _learn(self, impostor: Impostor) -> None:
        """Learn the current state, so that some of the malformed messages come close to it."""
        try:
            view = self.cluster.view(1)
        except OSError:
            return
        groups = {int(group["group"]): group for group in view["groups"]}
        terms = {int(group["term"]) for group in groups.values()}
        commits = {int(group["commit"]) for group in groups.values()}
        impostor.known = {
            "to": list(self.cluster.nodes),
            "sender": [IMPOSTOR],
            "group": list(groups),
            "term": sorted(terms | {max(terms, default=1) - 1}),
            "prev_term": sorted(terms),
            "last_term": sorted(terms),
            "index": sorted(commits),
            "prev_index": sorted({commit + step for commit in commits for step in (-1, 0, 1)}),
            "match": sorted(commits),
            "commit": sorted(commits),
            "name": list(self.writer.acknowledged),
        }

    def _look(self, number: int) -> None:
        """Check that both nodes are up and unchanged."""
        wrong = [f"seed {self.seed}, round {number}: {line}" for line in self._troubles()]
        self.outcome.wrong += wrong[:5]

    def _troubles(self) -> list[str]:
        found = self.cluster.odd_lines()
        found += silence([self.cluster.url(number) for number in self.cores])
        for number, cores in self.cores.items():
            for core in cores:
                if not core.is_running() or core.status() == psutil.STATUS_ZOMBIE:
                    found.append(
                        f"a core of node {number} has ended: "
                        f"{''.join(self.cluster.nodes[number].log[-8:])}"
                    )
                elif (grown := core.memory_info().rss - self.memory[core.pid]) > GROWTH_BYTES_MAX:
                    found.append(
                        f"a core of node {number} has {grown >> 20} MiB more than at its start"
                    )
        began = time.monotonic()
        while (
            not found
            and self.writer.last < began - 1
            and time.monotonic() < began + GOING_ON_SECONDS
        ):
            wait_until(
                lambda: (
                    self.writer.last >= began - 1 or time.monotonic() > began + GOING_ON_SECONDS
                ),
                what="an append",
            )
        if not found and self.writer.last < began - 1:
            found.append(
                f"no append was acknowledged for {time.monotonic() - self.writer.last:.0f} s"
            )
        return found

    def _rest(self) -> None:
        """Check that the node frees the impostor's resources once it has gone, and reports its own
        state."""

        def idle() -> bool:
            return all(
                core.num_fds() <= self.files[core.pid] + 20
                for cores in self.cores.values()
                for core in cores
            )

        try:
            wait_until(idle, what="connections to be closed", seconds=40)
            self.cluster.wait_led(60)
        except AssertionError as error:
            self.outcome.wrong.append(f"seed {self.seed}: {error}")
        self.outcome.wrong += [f"seed {self.seed}: {line}" for line in self._troubles()][:5]
