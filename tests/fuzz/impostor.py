"""A malicious member of a cluster: it has the certificate and the handshake of a node, and both
calls the others and answers their calls."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from fuzz.bytes import Shapes, damaged, noise, number

from polynya.access.authenticator import Report
from polynya.base.msgpack import UNREADABLE
from polynya.cluster.status import CoreStatus
from polynya.local.api import Page, StreamInfo
from polynya.raft.codec import _Frame
from polynya.raft.messages import SnapshotChunk
from polynya.routing import messages
from polynya.stream.features.appends.commands import Append as AppendCommand
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.transport import Hello, PeerTls, node_name
from polynya.transport.handshake import (
    LANE_ASK,
    LANE_RAFT,
    MAGIC,
    PREAMBLE,
    decode_hello,
    encode_hello,
)
from polynya.transport.lane import join_messages
from polynya.transport.link import HEADER, FrameLink, FrameType

KIND_BULK, MAP = 65_535, 1007
ASKED: dict[int, Any] = {  # what the body of a call of each kind is
    messages.INFO: messages.Attach,
    messages.READ: messages.Query,
    messages.READ_UID: messages.ReadUid,
    messages.LIST: messages.ListQuery,
    messages.TABLES: messages.Flush,
    messages.LAG: messages.LagQuery,
    messages.FLUSH: messages.Flush,
    messages.POSITION_OF_TIME: messages.TimeOfUid,
    messages.BUCKETS: messages.Flush,
    messages.LEADERS: dict[int, tuple[int, int]],
    messages.EPOCH_END: messages.EpochQuery,
    messages.LEADERS_OF: list[int],
    messages.META: messages.Flush,
    1000: int,
    1001: int,
    1002: Report,
    1003: bytes,
    1004: bytes,
    MAP: ClusterMap,
    1009: float,
}
ANSWERED: dict[int, Any] = {  # and of an answer; that an append was taken would be believed
    messages.INFO: StreamInfo,
    messages.READ: Page,
    messages.LIST: list[StreamInfo],
    messages.META: dict[str, bytes],
    1004: CoreStatus,
    1009: bool,
}
PROPOSED = {messages.PROPOSE, messages.PROPOSE_ALL, messages.PASS_ON}
# numbers of errors that travel, but for damaged data, and some that do not
FAULTS = (
    0,
    1,
    2,
    4,
    5,
    99,
)
CONNECT_SECONDS = 5.0


class Impostor:
    """Node `own.node`. `addresses`: peer ports, by node. `known`: real values of the cluster, for
    fields of that name."""

    def __init__(
        self, chance: random.Random, own: Hello, addresses: dict[int, int], tls: PeerTls | None
    ) -> None:
        self.chance, self.own, self.addresses, self.tls = chance, own, addresses, tls
        self.counts: Counter[str] = Counter()
        self.known: dict[str, list[Any]] = {}
        self._server: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[FrameLink] = set()

    # --- lines ------------------------------------------------------------------------------------

    async def line(
        self, node: int, lane: int = LANE_ASK, greeting: bytes | None = None
    ) -> FrameLink:
        """Connect to a node and greet it, with `greeting` in place of the right one. Raises
        OSError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()

        def received(type_: int, *_: Any) -> None:
            if not answer.done():
                answer.set_result(type_)

        def lost() -> None:
            self._lines.discard(link)
            if not answer.done():
                answer.set_exception(ConnectionResetError("it was refused"))

        link = FrameLink(lambda: self._lines.add(link), received, lost, checked=self.tls is None)
        async with asyncio.timeout(CONNECT_SECONDS):
            raw = socket.socket()
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self.addresses[node]))
            await loop.sock_sendall(raw, PREAMBLE.pack(MAGIC, 0, lane))
            name = node_name(node) if self.tls else None
            await loop.create_connection(
                lambda: link,
                sock=raw,
                ssl=self.tls.client if self.tls else None,
                server_hostname=name,
            )
            link.send(
                FrameType.HELLO, 0, 0, encode_hello(self.own) if greeting is None else greeting
            )
            type_ = await answer
        if type_ != FrameType.WELCOME:
            link.close()
            raise ConnectionRefusedError("it was refused")
        link.on_frame = lambda *_: self.counts.update(["answers"])
        return link

    async def learn(self, node: int) -> Hello:
        """Return a node's description of itself."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Hello] = loop.create_future()
        link = FrameLink(
            lambda: None,
            lambda type_, kind, ident, body: (
                found.done()
                or found.set_result(
                    decode_hello(body[:kind] if type_ == FrameType.REFUSED else body)
                )
            ),
            lambda: None,
            checked=self.tls is None,
        )
        async with asyncio.timeout(CONNECT_SECONDS):
            raw = socket.create_connection(("127.0.0.1", self.addresses[node]))
            raw.setblocking(False)
            await loop.sock_sendall(raw, PREAMBLE.pack(MAGIC, 0, LANE_ASK))
            name = node_name(node) if self.tls else None
            await loop.create_connection(
                lambda: link,
                sock=raw,
                ssl=self.tls.client if self.tls else None,
                server_hostname=name,
            )
            link.send(
                FrameType.HELLO, 0, 0, encode_hello(msgspec.structs.replace(self.own, asks=True))
            )
            hello = await found
        link.close()
        return hello

    def listen(self, port: int) -> None:
        """Listen for what the others ask."""
        self._server = socket.create_server(("127.0.0.1", port), backlog=64)
        self._server.setblocking(False)
        self._spawn(self._accept())

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self._lines):
            link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._server is not None
        while True:
            raw, _ = await loop.sock_accept(self._server)
            self._spawn(self._receive(raw))

    async def _receive(self, raw: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                head = b""
                while len(head) < PREAMBLE.size:
                    piece = await loop.sock_recv(raw, PREAMBLE.size - len(head))
                    if not piece:
                        raw.close()
                        return
                    head += piece
                link = FrameLink(
                    lambda: self._lines.add(link),
                    lambda *frame: None,
                    lambda: self._lines.discard(link),
                    checked=self.tls is None,
                )
                link.on_frame = lambda *frame: self._answer(link, *frame)
                await loop.connect_accepted_socket(
                    lambda: link, raw, ssl=self.tls.server if self.tls else None
                )

    def _answer(self, link: FrameLink, type_: int, kind: int, ident: int, body: bytes) -> None:
        """Answer as a node would, but every second time with malformed data."""
        chance, sane = self.chance, self.chance.random() < 0.5
        if type_ == FrameType.HELLO:
            drawn = chance.random()
            if drawn < 0.8:
                link.send(FrameType.WELCOME, 0, 0, encode_hello(self.own))
            elif drawn < 0.9:
                link.send(FrameType.WELCOME, 0, 0, damaged(chance, encode_hello(self.own)))
            else:
                link.send(
                    chance.randrange(16),
                    chance.randrange(200),
                    number(chance) % 2**64,
                    damaged(chance, encode_hello(self.own)),
                )
        elif type_ == FrameType.PING:
            link.send(FrameType.PONG, 0, 0, b"")
        elif type_ == FrameType.CALL:
            self.counts[f"answer to {kind}"] += 1
            shape = ANSWERED.get(kind)
            if kind == MAP:  # a map of a later epoch would be believed
                link.send(FrameType.REPLY, 0, ident, self._map())
            elif sane and shape is not None:
                link.send(FrameType.REPLY, 0, ident, self.shapes().encoded(shape))
            elif chance.random() < 0.5:
                link.send(FrameType.REPLY, 0, ident, self._noise(kind))
            else:
                link.send(FrameType.ERROR, chance.choice(FAULTS), ident, noise(chance, 30))
        elif type_ == FrameType.OPEN:
            link.send(FrameType.ITEM, 0, ident, noise(chance))
            link.send(FrameType.END, chance.choice(FAULTS), ident, noise(chance, 20))
        if chance.random() < 0.02 and type_ != FrameType.HELLO:
            self.break_frame(link)

    def _noise(self, kind: int) -> bytes:
        """Draw noise; but no reply to a proposal by chance, which would be believed."""
        found = noise(self.chance)
        while kind in PROPOSED:
            try:
                messages.decode(messages.PROPOSE, found)
            except UNREADABLE:
                break
            found = noise(self.chance)
        return found

    # --- nonsense ---------------------------------------------------------------------------------

    def shapes(self, wrong: float = 0.05) -> Shapes:
        return Shapes(
            self.chance, wrong=wrong if self.chance.random() < 0.5 else 0.0, known=self.known
        )

    async def say(self) -> None:
        """Send one kind of invalid data to one of the others."""
        chance = self.chance
        node = chance.choice(list(self.addresses))
        acts: tuple[Callable[[int], Any], ...] = (
            self._agree,
            self._agree,
            self._ask,
            self._ask,
            self._chunks,
            self._rude,
            self._greet,
            self._subscribe,
        )
        with suppress(OSError, TimeoutError):  # of which the errors of TLS are some
            await chance.choice(acts)(node)

    async def _agree(self, node: int) -> None:
        """Send messages of groups."""
        link = await self.line(node, LANE_RAFT)
        for _ in range(self.chance.randrange(1, 30)):
            body = join_messages([self._message() for _ in range(self.chance.randrange(1, 4))])
            link.send(
                FrameType.RAFT,
                0,
                0,
                damaged(self.chance, body) if self.chance.random() < 0.1 else body,
            )
            self.counts["messages of groups"] += 1
        await _left(link)

    async def _ask(self, node: int) -> None:
        chance = self.chance
        link = await self.line(node)
        for ident in range(1, chance.randrange(2, 40)):
            kind, body = self._question()
            link.send(
                chance.choice((FrameType.CALL, FrameType.CALL, FrameType.SEND)),
                kind,
                ident if chance.random() < 0.9 else 1,
                body,
            )
            self.counts[f"asked {kind}"] += 1
        await _left(link)

    def _question(self) -> tuple[int, bytes]:
        chance, drawn = self.chance, self.chance.random()
        group = chance.choice([*self.known.get("group", [0]), number(chance)]) % 65_536
        if drawn < 0.1:
            return messages.PROPOSE, struct.pack("<H", group) + noise(chance)
        if drawn < 0.2:
            body = self.shapes().encoded(list[AppendCommand])
            return messages.PROPOSE_ALL, struct.pack("<H", group) + (
                damaged(chance, body) if chance.random() < 0.5 else body
            )
        if drawn < 0.3:
            return messages.PASS_ON, struct.pack("<HH", chance.randrange(20), group) + noise(chance)
        if drawn < 0.35:
            return chance.randrange(65_536), noise(chance)
        kind = chance.choice(list(ASKED))
        if kind == MAP:
            return MAP, chance.choice(
                (
                    self._map,
                    lambda: noise(chance),
                    lambda: msgspec.msgpack.encode(number(chance) % 2**63),
                )
            )()
        body = self.shapes().encoded(ASKED[kind])
        return kind, damaged(chance, body) if chance.random() < 0.3 else body

    def _map(self) -> bytes:
        """Return a cluster map, never of a later epoch: nodes would believe that
        (docs/decisions/0024)."""
        found = self.shapes(0.3).of(ClusterMap)
        return (
            msgspec.msgpack.encode([0, *found[1:]])
            if isinstance(found, list)
            else noise(self.chance)
        )

    async def _subscribe(self, node: int) -> None:
        chance = self.chance
        link = await self.line(node)
        for ident in range(chance.randrange(1, 100)):
            body = self.shapes().encoded(messages.Attach)
            link.send(
                FrameType.OPEN,
                messages.ATTACH,
                ident,
                damaged(chance, body) if chance.random() < 0.3 else body,
            )
            if chance.random() < 0.3:
                link.send(FrameType.CANCEL, 0, chance.randrange(200), b"")
        self.counts["subscriptions"] += 1
        await _left(link)

    async def _chunks(self, node: int) -> None:
        """Send snapshots: in any order, again, of other sizes, of groups that are not there,
        without end."""
        chance = self.chance
        link = await self.line(node, chance.choice((LANE_ASK, LANE_RAFT)))
        bulk = chance.random() < 0.7
        snapshot = self.shapes(0.0).of(SnapshotChunk)[5]
        for _ in range(chance.randrange(1, 60)):
            chunk = self.shapes(0.02).of(SnapshotChunk)
            if isinstance(chunk, list) and len(chunk) == 8 and chance.random() < 0.8:
                chunk[1], chunk[2], chunk[5] = node, self.own.node, snapshot
                chunk[6] = chance.choice((0, 0, 1, 5, 1 << 20))
                chunk[7] = chance.randbytes(chance.choice((0, 1, 5, 200, 1 << 20)))
            body = join_messages([msgspec.msgpack.encode(chunk)])
            link.send(FrameType.SEND if bulk else FrameType.RAFT, KIND_BULK if bulk else 0, 0, body)
            self.counts["chunks"] += 1
        await _left(link)

    def _message(self) -> bytes:
        shape = self.shapes()
        found = shape.of(_Frame)
        if self.chance.random() < 0.9 and isinstance(found, list) and len(found) > 3:
            found[1], found[2] = self.chance.choice(list(self.addresses)), self.own.node
        return msgspec.msgpack.encode(found)

    async def _rude(self, node: int) -> None:
        """Send frames that are none."""
        link = await self.line(node, self.chance.choice((LANE_ASK, LANE_RAFT)))
        for _ in range(self.chance.randrange(1, 5)):
            self.break_frame(link)
        await _left(link)

    def break_frame(self, link: FrameLink) -> None:
        chance = self.chance
        self.counts["frames that are none"] += 1
        if not link.up:
            return
        link.flush()
        body = noise(chance)
        length = chance.choice(
            (len(body), len(body) + 1, 2**32 - 1, 41 << 20, number(chance) % 2**32)
        )
        head = HEADER.pack(
            length, chance.randrange(256), chance.randrange(65_536), number(chance) % 2**64, 0
        )
        link.transport.write(damaged(chance, head + body) if chance.random() < 0.3 else head + body)

    async def _greet(self, node: int) -> None:
        """Send greetings of others, of other clusters, and of none."""
        chance = self.chance
        self.counts["greetings"] += 1
        right = encode_hello(self.own)
        fields = msgspec.structs.asdict(self.own)
        name = chance.choice(list(fields))
        value = self.shapes(0.2).of(type(fields[name]))
        changed = msgspec.msgpack.encode(
            [value if key == name else kept for key, kept in fields.items()]
        )
        at = right.index(self.own.cluster.encode()) + chance.randrange(len(self.own.cluster))
        greeting = chance.choice(
            (
                changed,
                changed,
                damaged(chance, changed),
                damaged(chance, right),
                right[:at] + b"\xff" + right[at + 1 :],
            )
        )
        link = await self.line(node, chance.choice((LANE_ASK, LANE_RAFT)), greeting)
        link.close()


async def _left(link: FrameLink) -> None:
    """Wait until the output is sent, or until the other side stops reading."""
    link.flush()
    for _ in range(100):
        if not link.up or link.transport.get_write_buffer_size() == 0:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.02)
    link.close()
