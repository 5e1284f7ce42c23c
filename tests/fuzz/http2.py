"""A node under clients of HTTP/2: correct ones with a model of their stream, and vandals. These
send floods, resets, header blocks and frames of all kinds, damaged ones, pieces, and silence."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
from collections import Counter
from pathlib import Path

import httpx
from fuzz.bytes import Outcome, damaged, noise
from fuzz.play import Cores, Wrong, play_all
from hpack import Encoder
from product import running_node

KEEPERS, VANDALS = 2, 3
SITTERS_MAX = 30
DRAIN_SECONDS = 0.05
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
PATHS = (
    "/v1/stream/vandal",
    "/v1/streams",
    "/v1/stream/vandal?offset=-1",
    "/v1/live?match=**",
    "*",
)
# a keeper's stream is read by vandals, too; a POST to it would be an append like any other
LIVE = "/v1/stream/keeper-0?offset=-1&live=sse"
READING = ("GET", "HEAD", "OPTIONS")


class Keeper:
    """A keeper that appends to a stream of its own and reads all of it."""

    def __init__(self, chance: random.Random, number: int, url: str) -> None:
        self.chance, self.number = chance, number
        self.counts: Counter[str] = Counter()
        self._web = httpx.Client(base_url=url, http1=False, http2=True, timeout=60)
        self._path = f"/v1/stream/keeper-{number}"
        self._written: list[int] = []
        self._must(201, self._web.put(self._path, headers={"content-type": "application/json"}))

    def act(self) -> None:
        """Append some values, or read and check them. Raises Wrong."""
        if self.chance.random() < 0.7:
            values = [self.chance.randrange(1000) for _ in range(self.chance.choice((1, 3, 4000)))]
            self._must(204, self._web.post(self._path, json=values))
            self._written += values
            self.counts["appends"] += 1
        else:
            self._read()

    def finish(self) -> None:
        self._read()
        self._web.close()

    def _read(self) -> None:
        found: list[int] = []
        offset = "-1"
        while True:
            answer = self._must(200, self._web.get(self._path, params={"offset": offset}))
            found += json.loads(answer.content)
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                break
        if found != self._written:
            raise Wrong(f"{len(found)} values instead of {len(self._written)}")
        self.counts["reads"] += 1

    def _must(self, status: int, answer: httpx.Response) -> httpx.Response:
        if answer.status_code != status or answer.http_version != "HTTP/2":
            raise Wrong(f"{answer.status_code} instead of {status}: {answer.text[:200]}")
        return answer


class Vandal:
    """A vandal with frames; its connection gets responses or is closed."""

    def __init__(self, chance: random.Random, number: int, url: str) -> None:
        self.chance, self.number = chance, number
        self.counts: Counter[str] = Counter()
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self._sitters: list[socket.socket] = []

    def act(self) -> None:
        """Open one connection, and send some frames."""
        chance = self.chance
        with contextlib.suppress(OSError):  # closed by the node, as it may
            line = socket.create_connection(self._address, timeout=60)
            self._sitters.append(line)
            if len(self._sitters) > SITTERS_MAX:
                self._sitters.pop(0).close()
            line.settimeout(DRAIN_SECONDS)
            line.sendall(PREFACE + frame(SETTINGS, 0, 0, self._settings()))
            self._encoder, self._stream = Encoder(), 1
            for _ in range(chance.choice((1, 3, 20))):
                self.counts["frames"] += 1
                line.sendall(self._frames())
            while chance.random() < 0.9 and line.recv(65_536):
                pass
            if chance.random() < 0.7:
                line.close()

    def finish(self) -> None:
        for each in self._sitters:
            each.close()

    def _frames(self) -> bytes:
        chance, drawn = self.chance, self.chance.random()
        if drawn < 0.5:
            found = self._request()
        elif drawn < 0.6:
            found = self._one() * chance.choice((1, 50, 30_000))
        elif drawn < 0.7:
            self.counts["floods of requests"] += 1
            found = b"".join(
                self._request() + frame(RST_STREAM, 0, self._stream - 2, b"\0\0\0\x08")
                for _ in range(chance.choice((5, 3000)))
            )
        elif drawn < 0.75:
            return noise(chance)
        else:
            found = self._one()
        return damaged(chance, found) if chance.random() < 0.15 and len(found) < 5000 else found

    def _one(self) -> bytes:
        chance = self.chance
        kind = chance.choice((*range(10), 0xEE))
        sizes = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW: 4, GOAWAY: 8}
        size = sizes.get(kind, chance.choice((0, 1, 6, 100)))
        number = 0 if kind in (SETTINGS, PING, GOAWAY) else chance.choice((0, 1, self._stream))
        return frame(kind, chance.choice((0, 1, 4, 5, 8, 0x20)), number, chance.randbytes(size))

    def _request(self) -> bytes:
        chance = self.chance
        method = chance.choice((*READING, "POST", "PUT"))
        fields = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", chance.choice((*PATHS, LIVE) if method in READING else PATHS)),
            ("content-type", "application/json"),
        ]
        if chance.random() < 0.2:
            fields.append((chance.choice(("x", "host", "te", "connection", "Upper")), "a"))
        number, self._stream = self._stream, self._stream + 2
        block = self._encoder.encode(fields)
        if chance.random() < 0.05:
            block += b"\xbe" * 9000
        if method != "POST":
            return frame(HEADERS, 5, number, block)
        parts = [frame(HEADERS, 4, number, block)]
        parts += [
            frame(DATA, 0, number, b"[1]" * chance.choice((0, 1, 3000)))
            for _ in range(chance.choice((0, 1, 5)))
        ]
        return b"".join(parts) + frame(DATA, chance.choice((0, 1, 1)), number, b"")

    def _settings(self) -> bytes:
        chance = self.chance
        return b"".join(
            struct.pack(">HI", chance.randrange(1, 8), chance.choice((0, 1, 100, 16_384, 65_535)))
            for _ in range(chance.choice((0, 0, 1, 2)))
        )


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def fuzz_http2(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz HTTP/2 for a number of actions per client, or for a time."""
    outcome = Outcome()
    with running_node(folder / "data", "--cores", "1") as node:
        cores = Cores(node.process.pid)
        clients = [
            kind(random.Random(f"{seed}-{number}"), number, node.url)
            for number, kind in enumerate([Keeper] * KEEPERS + [Vandal] * VANDALS)
        ]
        play_all(outcome, seed, clients, [node.admin], rounds, seconds)
        outcome.wrong += cores.aftermath(node.log)
    return outcome
