"""Requests, writes and readers on a cluster of real processes, in which a leader may change and a
node may not answer at any time."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from polling import wait_until
from product import Ran, polynya
from worlds.dev_cluster import DevCluster

from polynya.base.names import group_of

JSON = {"Content-Type": "application/json"}
AGAIN = (500, 502, 503, 504)  # no leader at the moment, or an unknown outcome
ASK_SECONDS = 60.0
STREAMS_TRIED = 200
PAUSE_SECONDS = 0.02  # of a writer, after each record
Answer = tuple[int, bytes, Mapping[str, str]]  # status, body, headers by names in any case


def ask_once(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Return status and body, whatever they are. Raises OSError and HTTPException."""
    return _asked(method, url, body, headers)[:2]


def ask(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Send a request until its outcome is known: an append by a producer of its own, so that it is
    there once. The status is that of a first attempt which had success. For refusals that a test
    waits for there is `ask_once`."""
    return _known(method, url, body, headers)[:2]


def records(url: str, name: str) -> list[Any]:
    """Read all of a JSON stream, page by page."""
    found: list[Any] = []
    offset = "-1"
    while True:
        status, body, headers = _known("GET", f"{url}/v1/stream/{name}?offset={offset}", None, {})
        assert status == 200, body
        found += json.loads(body)
        offset = headers["stream-next-offset"]
        if "stream-up-to-date" in headers:
            return found


def _asked(method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    request = Request(url, data=body, method=method, headers={**JSON, **headers})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except HTTPError as error:
        return error.code, error.read(), error.headers


def _known(method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    if method == "POST" and "/v1/stream/" in url:
        headers = {
            "Producer-Id": secrets.token_hex(8),
            "Producer-Epoch": "0",
            "Producer-Seq": "0",
            **headers,
        }
    tries: list[object] = []

    def look() -> Answer | None:
        try:
            tries.append(_asked(method, url, body, headers))
        except (OSError, HTTPException) as error:
            tries.append(error)
        last = tries[-1]
        return last if isinstance(last, tuple) and last[0] not in AGAIN else None

    try:
        status, found, received = wait_until(look, what="an answer", seconds=ASK_SECONDS, pause=0.1)
    except AssertionError as error:
        raise AssertionError(f"{method} {url}: {error}; the last one: {tries[-1]}") from None
    return _first_status(method, status, again=len(tries) > 1), found, received


def _first_status(method: str, status: int, *, again: bool) -> int:
    """Return the status of a first attempt: one before may have had the effect, and a producer's
    first append is 200."""
    if method == "POST" and status == 200:
        return 204
    return (
        {("PUT", 200): 201, ("DELETE", 404): 204}.get((method, status), status) if again else status
    )


def run(*arguments: str, server: str, seconds: float = 60.0, **variables: str) -> Ran:
    """Run the command line; repeat it while a group has no leader and the command reports no
    change."""

    def once() -> Ran | None:
        ran = polynya(*arguments, server=server, seconds=seconds, **variables)
        return None if ran.code and "Nothing was applied" in ran.err else ran

    return wait_until(once, what=" ".join(arguments), seconds=max(seconds, 60.0))


class Writer(threading.Thread):
    """Appends numbers to one stream, by one node, each until it is acknowledged: an idempotent
    producer may ask again.

    It pauses between two records: a test needs writers at work, and not a machine that does nothing
    else."""

    def __init__(self, url: str, name: str, producer: str = "w") -> None:
        super().__init__(daemon=True)
        self.stream = f"{url}/v1/stream/{name}"
        self.producer = producer
        self.acknowledged = 0
        self.longest = 0.0  # seconds that one record took
        self.stopping = threading.Event()
        self.odd: list[tuple[int, bytes]] = []

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            if not self._append(self.acknowledged):
                return
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged += 1
            self.stopping.wait(PAUSE_SECONDS)

    def _append(self, number: int) -> bool:
        headers = {"Producer-Id": self.producer, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        deadline = time.monotonic() + 2 * ASK_SECONDS
        while True:
            try:
                status, body = ask_once("POST", self.stream, json.dumps(number).encode(), **headers)
            except (OSError, HTTPException):
                status, body = AGAIN[0], b""
            if status in (200, 204):
                return True
            if status not in AGAIN or time.monotonic() > deadline:
                self.odd.append((status, body))
                return False
            self.stopping.wait(0.02)  # and ask again

    def finish(self) -> int:
        self.stopping.set()
        self.join(60)
        assert not self.odd and not self.is_alive()
        return self.acknowledged


class Tail(threading.Thread):
    """A follower of a stream by server-sent events at one node; `got` is its data, each record
    once."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.stream = f"{url}/v1/stream/{name}"
        self.got: list[int] = []
        self.offset = "-1"
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with urlopen(f"{self.stream}?offset={self.offset}&live=sse", timeout=30) as answer:
                    self._follow(answer)
            except (OSError, HTTPException):
                self.stopping.wait(0.05)

    def _follow(self, answer: Any) -> None:
        """Count records once the offset behind them is known: a connection may break in between,
        and anywhere in a line."""
        event, came = "", []
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if not raw.endswith(b"\n"):
                return
            if line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("data:") and event == "data":
                came += json.loads(line[5:])
            elif line.startswith("data:") and event == "control":
                self.offset = json.loads(line[5:])["streamNextOffset"]
                self.got += came
                came = []


def go_on(writers: list[Writer], what: str) -> None:
    before = [writer.acknowledged for writer in writers]
    wait_until(
        lambda: all(w.acknowledged > b + 20 for w, b in zip(writers, before, strict=True)),
        what=what,
    )


def agreed(
    cluster: DevCluster, by: int, what: str, look: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Wait until node `by` knows something that another node has told before, and return its
    view."""
    return wait_until(
        lambda: view if look(view := cluster.view(by)) else None, what=f"node {by} to know {what}"
    )


def names_by_leader(cluster: DevCluster) -> dict[int, str]:
    """Return a stream for each node, which leads its group. All nodes have to be there."""

    def look() -> dict[int, str] | None:
        view = cluster.wait_until_well(1)
        leaders = {group["group"]: group["leader"] for group in view["groups"]}
        found: dict[int, str] = {}
        for number in range(STREAMS_TRIED):
            name = f"by-leader/{number}"
            found.setdefault(leaders[group_of(name, len(leaders) - 1)], name)
        return found if len(found) == len(cluster.urls) else None

    return wait_until(look, what="every node to lead some group")
