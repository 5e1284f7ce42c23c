"""Raft messages to one core of another node: one frame for all messages of a turn, never
blocking."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

from polynya.base.errors import InvalidMessage
from polynya.base.limits import MIB
from polynya.transport.backoff import Backoff, Connect, keep_connected
from polynya.transport.keepalive import Keepalive
from polynya.transport.link import FrameLink, FrameType

# Unsent bytes, in addition to the socket: the largest append and others. Above the bound the oldest
# messages are dropped; Raft resends them, or newer ones replace them.
QUEUE_BYTES_MAX = 64 * MIB
SOCKET_BYTES_MAX = 1 * MIB  # limit for the socket, because data in it cannot be dropped
FRAME_BYTES = 4 * MIB  # a frame holds at least one message, and several only up to this size
_LENGTH = struct.Struct("<I")


class Lane:
    """The sending side of Raft messages. `on_up` and `on_down` are called for each connection,
    `on_taking` at each tick while large data moves. `synced` returns how far this core's journal
    is synced. `send` never blocks."""

    def __init__(
        self,
        connect: Connect,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_taking: Callable[[], None],
        synced: Callable[[], int],
    ) -> None:
        self._synced = synced
        self._connect = connect
        self._on_up = on_up
        self._on_down = on_down
        self._on_taking = on_taking
        self.dropped = 0
        self._keepalive = Keepalive()
        self._link: FrameLink | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._lost = asyncio.Event()
        self._backoff = Backoff()

    @property
    def connected(self) -> bool:
        return self._link is not None

    def silent_seconds(self, now: float) -> float:
        """Return how long nothing was received."""
        return max(0.0, now - self._keepalive.heard)

    def send(self, messages: list[bytes]) -> None:
        """Send messages at once, or queue them. Without a connection they are dropped."""
        link, queue = self._link, self._queue
        if link is None:
            self.dropped += len(messages)
            return
        size = sum(map(len, messages))
        if not queue and not link.full and size <= FRAME_BYTES:
            link.send(FrameType.RAFT, 0, self._synced(), join_messages(messages))
            link.flush()
            return
        queue += messages
        self._queued_bytes += size
        self._send_queued()
        while self._queued_bytes > QUEUE_BYTES_MAX and len(queue) > 1:
            self._queued_bytes -= len(queue.popleft())
            self.dropped += 1

    async def keep(self) -> None:
        """Stay connected until cancelled."""
        try:
            await keep_connected(self._connect, self._begin, self._lost, self._backoff)
        finally:
            self.drop()

    def tick(self, now: float) -> None:
        """Run the keepalive; called a few times a second."""
        if self._link is not None:
            self._keepalive.beat(self._link, now, self._synced())
            if self._keepalive.moving:
                self._on_taking()

    def hurry(self) -> None:
        """Retry now, because the peer has shown that it is up."""
        self._backoff.hurry()

    def drop(self) -> None:
        if self._link is not None:
            self._link.close()

    def _begin(self, link: FrameLink) -> bool:
        if not link.up:
            return False
        self._link = link
        link.on_frame, link.on_lost, link.on_room = _only_pongs, self._gone, self._send_queued
        link.transport.set_write_buffer_limits(high=SOCKET_BYTES_MAX, low=SOCKET_BYTES_MAX // 2)
        self._keepalive.begin(asyncio.get_running_loop().time())
        self._on_up()
        return True

    def _gone(self) -> None:
        self._link = None
        self.dropped += len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._lost.set()
        self._on_down()

    def _send_queued(self) -> None:
        link, queue = self._link, self._queue
        while queue and link is not None and link.up and not link.full:
            messages = [queue.popleft()]
            size = len(messages[0])
            while queue and size + len(queue[0]) <= FRAME_BYTES:
                messages.append(queue.popleft())
                size += len(messages[-1])
            self._queued_bytes -= size
            link.send(FrameType.RAFT, 0, self._synced(), join_messages(messages))
            link.flush()


def join_messages(messages: list[bytes]) -> bytes:
    """Join messages into the body of one frame."""
    pieces: list[bytes] = []
    for message in messages:
        pieces += (_LENGTH.pack(len(message)), message)
    return b"".join(pieces)


def messages_of(body: bytes) -> list[bytes]:
    """Split the body of a frame into messages. Raises InvalidMessage if it is malformed."""
    found: list[bytes] = []
    position, end = 0, len(body)
    while position < end:
        begin = position + _LENGTH.size
        if begin > end or begin + (length := _LENGTH.unpack_from(body, position)[0]) > end:
            raise InvalidMessage("a frame of Raft messages is truncated")
        position = begin + length
        found.append(body[begin:position])
    return found


def _only_pongs(type_: int, kind: int, ident: int, body: bytes) -> None:
    """Ignore frames: the peer sends only PONGs in this direction."""
