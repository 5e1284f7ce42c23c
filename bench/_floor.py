"""The lower bound of a cluster of three in Python, as `ursula-bench` and `wrk` measure it:
`bench.clusters --servers floor` starts it.

One node takes appends and sends them to two others, which write and fsync them; it answers when two
of the three have. No elections, limits, index, packs, recovery or errors: the difference to a real
cluster is their cost.

`python -m bench._floor PORT JOURNAL [PORT OF A FOLLOWER]...`; a follower: `python -m bench._floor
PORT JOURNAL follower`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import uvloop
from google_crc32c import value as crc32c

PUT = b"HTTP/1.1 201 Created\r\nStream-Next-Offset: 0\r\nContent-Length: 0\r\n\r\n"
OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nStream-Next-Offset: %016d_%016d\r\nProducer-Epoch: %d\r\nProducer-Seq: "
    b"%d\r\n"
    b"X-Content-Type-Options: nosniff\r\nContent-Length: 0\r\n\r\n"
)
RECORD, TURN, DONE = struct.Struct("<IIQQH"), struct.Struct("<QI"), struct.Struct("<Q")
KEPT = 200  # payloads of a stream in memory


class Stream:
    __slots__ = ("count", "payloads", "producers", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.payloads: list[bytes] = []
        self.producers: dict[bytes, tuple[int, int]] = {}

    def add(self, payload: bytes) -> None:
        self.count, self.size = self.count + 1, self.size + len(payload)
        self.payloads.append(payload)
        if len(self.payloads) > KEPT:
            self.payloads = []


class Disk:
    """A file that a thread writes and syncs, one write at a time. Later data joins the next write."""

    def __init__(self, path: str) -> None:
        self.busy = False
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._todo: queue.SimpleQueue[tuple[bytes, Callable[[], None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, daemon=True).start()

    def write(self, data: bytes, done: Callable[[], None]) -> None:
        self.busy = True
        self._todo.put((data, done))

    def _work(self) -> None:
        while True:
            data, done = self._todo.get()
            os.write(self._file, data)
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(done)


class Node:
    """A leader or a follower. The data of one loop pass form one turn."""

    def __init__(self, disk: Disk) -> None:
        self.streams: dict[bytes, Stream] = {}
        self.disk, self._soon = disk, False

    def kick(self) -> None:
        if not self.disk.busy and not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        self._soon = False
        if not self.disk.busy:
            self.turn()

    def turn(self) -> None:
        raise NotImplementedError


class Leader(Node):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.frames: list[bytes] = []
        self.answers: list[tuple[asyncio.WriteTransport, bytes]] = []
        self.followers: dict[asyncio.WriteTransport, int] = {}  # → the last turn that it has
        self._turn = self._durable = self._answered = 0
        self._waiting: dict[int, list[tuple[asyncio.WriteTransport, bytes]]] = {}

    def turn(self) -> None:
        if not self.frames:
            return
        self._turn += 1
        data = b"".join(self.frames)
        data = TURN.pack(self._turn, len(data)) + data
        self._waiting[self._turn], self.answers, self.frames = self.answers, [], []
        for follower in self.followers:
            follower.write(data)
        self.disk.write(data, self._written)

    def _written(self) -> None:
        self.disk.busy, self._durable = False, self._turn
        self.commit()
        self.turn()

    def commit(self) -> None:
        """Answer what a majority has."""
        marks = sorted((self._durable, *self.followers.values()))
        while self._answered < marks[len(marks) // 2]:
            self._answered += 1
            for transport, answer in self._waiting.pop(self._answered):
                transport.write(answer)

    def append(
        self,
        transport: asyncio.WriteTransport,
        name: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
    ) -> None:
        stream, producer = self.streams[name], headers.get(b"producer-id")
        epoch, sequence = (
            int(headers.get(b"producer-epoch", b"0")),
            int(headers.get(b"producer-seq", b"0")),
        )
        if producer is not None:
            last = stream.producers.get(producer)
            if last is not None and last[0] == epoch and sequence <= last[1]:
                transport.write(OTHER)
                return
            stream.producers[producer] = epoch, sequence
        stream.add(body)
        self.frames.append(
            RECORD.pack(len(body), crc32c(body), stream.count, stream.size, len(name)) + name + body
        )
        self.answers.append((transport, ANSWER % (stream.count, stream.size, epoch, sequence)))
        self.kick()


class Client(asyncio.Protocol):
    """A connection of one. Whole requests of well-behaved clients."""

    def __init__(self, leader: Leader) -> None:
        self._leader, self._rest = leader, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        begin = 0
        while (end := data.find(b"\r\n\r\n", begin)) >= 0:
            first, *lines = data[begin:end].split(b"\r\n")
            method, name, _ = first.split(b" ")
            headers = {}
            for line in lines:
                key, _, value = line.partition(b":")
                headers[key.lower()] = value.strip()
            size = int(headers.get(b"content-length", b"0"))
            if len(data) < end + 4 + size:
                break
            begin = end + 4 + size
            if method == b"POST":
                self._leader.append(self._transport, name, headers, data[end + 4 : begin])
            else:
                if method == b"PUT":
                    self._leader.streams[name] = Stream()
                self._transport.write(PUT if method == b"PUT" else OTHER)
        self._rest = data[begin:]


class Link(asyncio.Protocol):
    """A link to a follower."""

    def __init__(self, leader: Leader) -> None:
        self._leader, self._rest = leader, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._leader.followers[transport] = 0

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // DONE.size * DONE.size
        if whole:
            self._leader.followers[self._transport] = DONE.unpack_from(data, whole - DONE.size)[0]
            self._leader.commit()
        self._rest = data[whole:]


class Follower(Node, asyncio.Protocol):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._rest, self._turns = bytearray(), list[bytes]()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        rest, begin = self._rest, 0
        rest += data
        while len(rest) - begin >= TURN.size:
            end = begin + TURN.size + TURN.unpack_from(rest, begin)[1]
            if len(rest) < end:
                break
            self._turns.append(bytes(rest[begin:end]))
            begin = end
        del rest[:begin]
        self.kick()

    def turn(self) -> None:
        if self._turns:
            turns, self._turns = self._turns, []
            self.disk.write(b"".join(turns), lambda: self._written(turns))

    def _written(self, turns: list[bytes]) -> None:
        self.disk.busy = False
        self._transport.write(DONE.pack(TURN.unpack_from(turns[-1])[0]))
        for data in turns:
            self._apply(data)
        self.turn()

    def _apply(self, data: bytes) -> None:
        begin = TURN.size
        while begin < len(data):
            size, crc, count, _, name_size = RECORD.unpack_from(data, begin)
            middle = begin + RECORD.size + name_size
            name, body = data[begin + RECORD.size : middle], data[middle : middle + size]
            stream = self.streams.get(name)
            if stream is None:
                stream = self.streams[name] = Stream()
            stream.add(body)
            if crc32c(body) != crc or stream.count != count:
                sys.exit("what arrived is not what was sent")
            begin = middle + size


async def main(port: int, path: str, others: list[str]) -> None:
    loop, disk = asyncio.get_running_loop(), Disk(path)
    if others == ["follower"]:
        follower = Follower(disk)
        await loop.create_server(lambda: follower, "127.0.0.1", port)
    else:
        leader = Leader(disk)
        for other in others:
            await loop.create_connection(lambda: Link(leader), "127.0.0.1", int(other))
        await loop.create_server(lambda: Client(leader), "127.0.0.1", port)
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
