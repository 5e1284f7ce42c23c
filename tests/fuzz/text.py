"""A node under clients of the text protocol: correct ones with known responses, and vandals. These
send edge cases, pipelines, damaged frames, pieces, and silence, before AUTH and after it."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from pathlib import Path
from struct import pack

from fuzz.bytes import Outcome, damaged, noise, text
from fuzz.play import Cores, Wrong, play_all
from product import polynya, running_node
from worlds.text_client import TextClient, text_address

KEEPERS, VANDALS = 2, 3
SITTERS_MAX = 40
UNREAD_MAX = 100  # messages, of a keeper: then it takes one after the other
DRAIN_SECONDS = 0.05
FRAME_BYTES_MAX = 65_536
MANY = 100_000  # bytes of small frames sent at once
VERBS = (b"PUT", b"GET", b"REGISTER", b"STATE", b"METRICS", b"AUTH", b"put", b"X", b"")


class Keeper:
    """A keeper that puts messages into a topic of its own and takes them out in order."""

    def __init__(self, chance: random.Random, number: int, address: str, token: str) -> None:
        self.chance, self.number, self.topic = chance, number, f"keeper-{number}"
        self.counts: Counter[str] = Counter()
        self.line = TextClient(address)
        self._written: list[str] = []
        self._read = 0
        self._must("OK", self.line.ask(f"AUTH {token}"))
        self._must("OK", self.line.ask(f"REGISTER {self.topic}"))

    def act(self) -> None:
        """Put some messages, or get and check one. Raises Wrong."""
        if len(self._written) - self._read < UNREAD_MAX and self.chance.random() < 0.6:
            self._put()
        else:
            self._get()

    def finish(self) -> None:
        while self._read < len(self._written):
            self._get()
        self._get()
        self.line.socket.close()

    def _put(self) -> None:
        """Put messages in a pipeline, up to more than may be unanswered."""
        chance = self.chance
        messages = [
            f"{len(self._written) + at}:" + "x" * chance.choice((0, 5, 300, 20_000))
            for at in range(chance.choice((1, 1, 5, 200)))
        ]
        messages = messages[:20] if len(messages[0]) > 1000 else messages
        lines = [f"PUT {self.topic} {message}" for message in messages]
        sender = threading.Thread(target=self.line.send, args=lines)
        sender.start()
        for _ in messages:
            self._must("OK", self.line.receive())
        sender.join()
        self._written += messages
        self.counts["puts"] += len(messages)

    def _get(self) -> None:
        is_end = self._read == len(self._written)
        self._must(
            "EMPTY" if is_end else f"OK {self._written[self._read]}",
            self.line.ask(f"GET {self.topic}"),
        )
        self._read += not is_end
        self.counts["gets"] += 1

    def _must(self, wanted: str, got: str) -> None:
        if got != wanted:
            raise Wrong(f"{got[:200]!r} instead of {wanted[:200]!r}")


class Vandal:
    """A vandal that sends malformed data; its connection gets responses or is closed."""

    def __init__(self, chance: random.Random, number: int, address: str, token: str) -> None:
        self.chance, self.number, self._address, self._token = chance, number, address, token
        self.counts: Counter[str] = Counter()
        self._sitters: list[socket.socket] = []

    def act(self) -> None:
        """Open one connection, and send some lines."""
        chance = self.chance
        with contextlib.suppress(OSError):  # closed by the node, as it may
            line = TextClient(self._address)
            if chance.random() < 0.6:
                line.ask(f"AUTH {self._token}")
            self._sitters.append(line.socket)
            if len(self._sitters) > SITTERS_MAX:
                self._sitters.pop(0).close()
            line.socket.settimeout(DRAIN_SECONDS)
            for _ in range(chance.choice((1, 1, 3, 70))):
                self.counts["requests"] += 1
                line.socket.sendall(self._frames())
            if chance.random() < 0.3:
                line.socket.shutdown(socket.SHUT_WR)
            while chance.random() < 0.9 and line.socket.recv(65_536):
                pass
            if chance.random() < 0.8:
                line.socket.close()

    def finish(self) -> None:
        for each in self._sitters:
            each.close()

    def _frames(self) -> bytes:
        chance, drawn = self.chance, self.chance.random()
        if drawn < 0.08:
            return noise(chance)
        if drawn < 0.15:  # many, or few that are as large as they may be
            self.counts["large requests"] += 1
            line = self._line()[: chance.choice((1, 5, 40))] or b"X"
            if chance.random() < 0.3:
                line += b" " + chance.choice((b"x", b" ", b"\xc2\xa0", b'"')) * FRAME_BYTES_MAX
                line = line[:FRAME_BYTES_MAX]
            framed = pack("<I", len(line)) + line
            return framed * (MANY // len(framed) + 2)
        line = self._line()
        if drawn < 0.4:
            line = damaged(chance, line)
        size = len(line) if chance.random() < 0.9 else chance.choice((0, 7, 65_537, 2**32 - 1))
        return pack("<I", size) + line[:FRAME_BYTES_MAX]

    def _line(self) -> bytes:
        chance = self.chance
        words = [text(chance).encode("utf-8", "replace") for _ in range(chance.randrange(4))]
        if words and chance.random() < 0.5:
            words[0] = chance.choice((b"a", b"b", b"keeper-x", self._token.encode()))
        return b" ".join([chance.choice(VERBS), *words])


def fuzz_text(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz the text protocol for a number of actions per client, or for a time."""
    outcome = Outcome()
    data = folder / "data"
    token = polynya("token", "create", "x", "--allow", "all", "--data", str(data)).out.strip()
    flags = ("--cores", "2", "--auth-required", "--text-listen", "on")
    with running_node(data, *flags) as node:
        address = text_address(node)
        cores = Cores(node.process.pid)
        clients = [
            kind(random.Random(f"{seed}-{number}"), number, address, token)
            for number, kind in enumerate([Keeper] * KEEPERS + [Vandal] * VANDALS)
        ]
        play_all(outcome, seed, clients, [node.admin], rounds, seconds, token=token)
        outcome.wrong += cores.aftermath(node.log)
        outcome.wrong += [line for line in node.log if "text protocol failed" in line][:3]
    return outcome
