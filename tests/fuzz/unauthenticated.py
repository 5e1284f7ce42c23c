"""Outsiders at a peer port: without a certificate, of another authority, stalling, sending noise,
and by the hundred."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import Counter
from contextlib import suppress

from fuzz.bytes import damaged, noise, number

from polynya.transport import Hello
from polynya.transport.handshake import LANE_ASK, MAGIC, PREAMBLE, encode_hello
from polynya.transport.link import HEADER, FrameType

CROWD = 300  # more than may be undecided at a time
HELD_MAX = 2000


class Outsiders:
    """Connections without credentials, many of which stay until the node drops them."""

    def __init__(self, chance: random.Random, addresses: dict[int, int], own: Hello) -> None:
        self.chance, self.addresses, self.own = chance, addresses, own
        self.counts: Counter[str] = Counter()
        self._held: list[socket.socket] = []

    async def come(self) -> None:
        """Open a few connections, rarely a crowd."""
        for _ in range(self.chance.randrange(1, 6)):
            await asyncio.to_thread(self._one)
        if self.chance.random() < 0.1:
            await asyncio.to_thread(self._crowd)

    async def close(self) -> None:
        for held in self._held:
            held.close()
        self._held.clear()

    def _connected(self) -> socket.socket:
        found = socket.create_connection(
            ("127.0.0.1", self.chance.choice(list(self.addresses.values()))), timeout=2
        )
        self._held.append(found)
        if len(self._held) > HELD_MAX:
            self._held.pop(0).close()
        return found

    def _one(self) -> None:
        chance = self.chance
        self.counts["outsiders"] += 1
        with suppress(OSError):
            line = self._connected()
            act = chance.randrange(7)
            preamble = PREAMBLE.pack(MAGIC, 0, LANE_ASK)
            if act == 0:  # says nothing
                return
            if act == 1:
                line.sendall(noise(chance, 2000))
            elif act == 2:
                line.sendall(
                    PREAMBLE.pack(MAGIC, number(chance) % 65_536, number(chance) % 256)
                    + noise(chance, 2000)
                )
            elif act == 3:
                line.sendall(damaged(chance, preamble))
            elif act == 4:  # a handshake that stops
                line.sendall(preamble + _client_hello()[: chance.randrange(1, 517)])
            elif act == 5:  # without a certificate
                line.sendall(preamble)
                self._held.remove(line)
                with _context().wrap_socket(
                    line, server_hostname="node-1.polynya.internal"
                ) as wrapped:
                    body = encode_hello(self.own)
                    wrapped.sendall(HEADER.pack(len(body), FrameType.HELLO, 0, 0, 0) + body)
                    wrapped.recv(100)
            else:  # without TLS
                body = encode_hello(self.own)
                line.sendall(preamble + HEADER.pack(len(body), FrameType.HELLO, 0, 0, 0) + body)
            if chance.random() < 0.5:
                line.shutdown(socket.SHUT_WR)

    def _crowd(self) -> None:
        self.counts["crowds"] += 1
        for _ in range(CROWD):
            with suppress(OSError):
                self._connected().sendall(
                    PREAMBLE.pack(MAGIC, 0, LANE_ASK)[: self.chance.randrange(17)]
                )


def _context() -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname = False
    found.verify_mode = ssl.CERT_NONE
    return found


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = _context().wrap_bio(incoming, outgoing, server_hostname="node-1.polynya.internal")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()
