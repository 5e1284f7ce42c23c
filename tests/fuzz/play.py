"""Clients that act in parallel on nodes, and the invariants of the nodes: no long turn of a loop,
no crashed core, and memory and connections are released."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
from fuzz.bytes import Outcome
from fuzz.cluster import ODD
from polling import wait_until

GROWTH_BYTES_MAX = 300 << 20
TURN_SECONDS_MAX = 0.25
EVERY_ACTS = 10  # of a client: then it looks
_METRIC = b"polynya_loop_turn_max_seconds "


class Wrong(Exception):
    """Raised when the server violates a rule."""


class Client(Protocol):
    """One of many. Its acts raise Wrong."""

    number: int
    counts: Counter[str]

    def act(self) -> None: ...

    def finish(self) -> None: ...


def play_all(
    outcome: Outcome,
    seed: int,
    clients: Sequence[Client],
    watched: list[str],
    rounds: int,
    seconds: float,
    *,
    token: str = "",
) -> None:
    """Run clients in parallel, for a number of actions each or for a time, and watch the turns of
    the nodes `watched`, with a token."""
    end = time.monotonic() + seconds

    def play(client: Client) -> None:
        done = 0
        try:
            while (done < rounds or time.monotonic() < end) and not outcome.wrong:
                client.act()
                done += 1
                if not done % EVERY_ACTS:
                    outcome.wrong += silence(watched, token)
            client.finish()
        except (Wrong, OSError, AssertionError) as wrong:
            outcome.wrong.append(
                f"seed {seed}, {type(client).__name__} {client.number}, act {done}: "
                f"{type(wrong).__name__}: {wrong}"
            )

    threads = [threading.Thread(target=play, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        outcome.counts += client.counts


def silence(urls: list[str], token: str = "") -> list[str]:
    """Return the turns of nodes that took too long, as defects."""
    found = []
    for url in urls:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        request = Request(f"{url}/metrics", headers=bearer)
        with suppress(OSError):
            try:
                with urlopen(request, timeout=20) as it:
                    lines = it.read().splitlines()
            except HTTPError as error:
                if error.code < 500:
                    found.append(f"{url}: the metrics answered {error.code}")
                continue
            longest = max(float(each.split()[1]) for each in lines if each.startswith(_METRIC))
            if longest >= TURN_SECONDS_MAX:
                found.append(f"{url}: a turn of the loop took {longest:.3f} s of its CPU time")
    return found


class Cores:
    """The core processes of supervisors `pids`, with their resources before the clients start."""

    def __init__(self, *pids: int) -> None:
        self._cores = [core for pid in pids for core in psutil.Process(pid).children()]
        self._before = {core.pid: (core.memory_info().rss, core.num_fds()) for core in self._cores}

    def aftermath(self, *logs: list[str]) -> list[str]:
        """Return defects: crashed cores, unreleased resources, and errors in the logs."""
        found = []
        for core in self._cores:
            if not core.is_running() or core.status() == psutil.STATUS_ZOMBIE:
                found.append(f"core {core.pid} has ended")
                continue
            memory, files = self._before[core.pid]
            grown = core.memory_info().rss - memory
            if grown > GROWTH_BYTES_MAX:
                found.append(f"core {core.pid} has {grown >> 20} MiB more than before")
            with suppress(AssertionError):
                wait_until(
                    lambda core=core, files=files: core.num_fds() <= files + 20,
                    what="connections to be closed",
                    seconds=30,
                )
                continue
            found.append(f"core {core.pid} has {core.num_fds()} open files, {files} before")
        for log in logs:
            lines = list(log)
            found += [
                "".join(lines[at : at + 25]) for at, line in enumerate(lines) if ODD.search(line)
            ][:3]
        return found
