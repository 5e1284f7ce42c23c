"""The requesting side of a connection to one other core: calls, one-way messages, subscriptions,
reconnection."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.msgpack import UNREADABLE
from polynya.transport.backoff import Backoff, Connect, keep_connected
from polynya.transport.errors import decode_error
from polynya.transport.keepalive import Keepalive
from polynya.transport.link import FRAME_BYTES_MAX, QUEUE_BYTES_MAX, FrameLink, FrameType

CALLS_MAX = 65_536  # unanswered calls per peer; only a flood of client requests reaches this
# how long requests wait for an absent peer (the restart of a core) before they fail
WAIT_SECONDS = 1.0
Done = Callable[[bytes | BaseException], None]
Outcome = TypeVar("Outcome")


class PeerSubscription:
    """A stream of messages from a peer. After `cancel`, neither `on_item` nor `on_end` is
    called."""

    __slots__ = ("_peer", "ident", "on_end", "on_item")

    def __init__(
        self,
        peer: Peer,
        ident: int,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._peer = peer
        self.ident = ident
        self.on_item = on_item
        self.on_end = on_end

    def cancel(self) -> None:
        self._peer.cancel(self)


class Peer:
    """All requests of this core to one other core. `name` is used in messages to users."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        call_seconds: float,
        keepalive: Keepalive | None = None,
    ) -> None:
        self.name = name
        self.now = 0.0  # the event loop's time at the last tick, precise enough for deadlines
        self.refused = 0
        self.failed = 0
        self._connect = connect
        self._keepalive = keepalive  # None: the kernel reports at once when the peer ends
        self._call_seconds = call_seconds
        self._link: FrameLink | None = None
        # set by the first tick; requests wait for the first connection, too
        self._down_since = math.inf
        self._next_id = 0
        self._calls: dict[int, tuple[Done, float]] = {}  # ordered by deadline
        self._subscriptions: dict[int, PeerSubscription] = {}
        self._waiting: list[
            tuple[int, int, int, bytes]
        ] = []  # type, kind, id, body: queued while the peer is down
        self._waiting_bytes = 0
        self._closed = False
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._backoff = Backoff()

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def outstanding(self) -> int:
        return len(self._calls)

    def call_nowait(self, kind: int, body: bytes, done: Done) -> None:
        ident = self._take(FrameType.CALL, kind, body)
        if ident:
            self._calls[ident] = (done, self.now + self._call_seconds)
        else:
            done(self._unavailable())

    def send(self, kind: int, body: bytes) -> bool:
        """Send a message and return whether it was accepted. An accepted message may still be lost
        with the connection."""
        return self._take(FrameType.SEND, kind, body) > 0

    def subscribe(
        self,
        kind: int,
        body: bytes,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> PeerSubscription:
        ident = self._take(FrameType.OPEN, kind, body)
        subscription = PeerSubscription(self, ident, on_item, on_end)
        if ident:
            self._subscriptions[ident] = subscription
        else:
            on_end(self._unavailable())
        return subscription

    def cancel(self, subscription: PeerSubscription) -> None:
        if self._subscriptions.pop(subscription.ident, None) is None:
            return
        if self._link is not None:
            self._link.send(FrameType.CANCEL, 0, subscription.ident, b"")
        else:
            self._waiting = [frame for frame in self._waiting if frame[2] != subscription.ident]
            self._waiting_bytes = sum(len(frame[3]) for frame in self._waiting)

    async def keep(self) -> None:
        """Stay connected until cancelled."""
        try:
            await keep_connected(self._connect, self._begin, self._lost, self._backoff)
        finally:
            if self._link is not None:
                self._link.close()
                await self._lost.wait()
            self.close()

    def close(self) -> None:
        """Fail the requests that wait for a connection, and all later ones."""
        self._closed = True
        self._fail_waiting(Unavailable("this core is stopping"))

    def hurry(self) -> None:
        """Retry now, because the peer has shown that it is up."""
        self._backoff.hurry()

    async def wait_connected(self) -> None:
        await self._up.wait()

    def tick(self, now: float) -> None:
        """Fail requests that timed out; called a few times a second."""
        self.now = now
        self._down_since = min(self._down_since, now)
        if self._keepalive is not None and self._link is not None:
            self._keepalive.beat(self._link, now)
        if self._link is None and self._waiting and now - self._down_since > WAIT_SECONDS:
            self._fail_waiting(self._unavailable())
        while self._calls:
            ident, (done, deadline) = next(iter(self._calls.items()))
            if deadline > now:
                break
            del self._calls[ident]
            self.failed += 1
            _complete(
                done, OutcomeUnknown(f"{self.name} did not answer within {self._call_seconds:g} s")
            )

    def _take(self, type_: int, kind: int, body: bytes) -> int:
        """Send or queue one frame. Return its id; 0 if it was refused."""
        link = self._link
        assert len(body) <= FRAME_BYTES_MAX, (
            f"a message of {len(body)} bytes: the largest request is much smaller"
        )
        if self._closed or len(self._calls) >= CALLS_MAX or (link is not None and link.full):
            self.refused += 1
            return 0
        ident = self._next_id = self._next_id + 1
        if link is not None:
            link.send(type_, kind, ident, body)
        elif self._waiting_bytes > QUEUE_BYTES_MAX or self.now - self._down_since > WAIT_SECONDS:
            self.refused += 1
            return 0
        else:
            self._waiting.append((type_, kind, ident, body))
            self._waiting_bytes += len(body)
        return ident

    def _unavailable(self) -> Unavailable:
        state = "is overloaded" if self._link is not None else "is down"
        return Unavailable(f"{self.name} {state}; retry")

    def drop(self) -> None:
        """Close the connection at once, because the peer is known to be down."""
        if self._link is not None:
            self._link.close()

    def _begin(self, link: FrameLink) -> bool:
        """Use a new connection and send the queued requests. Return whether it is still up."""
        if not link.up:
            return False
        self._link = link
        if self._keepalive is not None:
            self._keepalive.begin(asyncio.get_running_loop().time())
        link.on_frame, link.on_lost = self._on_frame, self._on_lost
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for frame in waiting:
            link.send(*frame)
        self._up.set()
        return True

    def _on_frame(self, type_: int, kind: int, ident: int, body: bytes) -> None:
        if type_ == FrameType.REPLY:
            call = self._calls.pop(ident, None)
            if call is not None:
                self._answered(call[0], body)
        elif type_ == FrameType.ITEM:
            subscription = self._subscriptions.get(ident)
            if subscription is not None:
                subscription.on_item(body)
        elif type_ == FrameType.ERROR:
            call = self._calls.pop(ident, None)
            if call is not None:
                _complete(call[0], decode_error(kind, body))
        elif type_ == FrameType.END:
            subscription = self._subscriptions.pop(ident, None)
            if subscription is not None:
                _complete(subscription.on_end, decode_error(kind, body) if kind else None)

    def _answered(self, done: Done, body: bytes) -> None:
        try:
            done(body)
        except UNREADABLE as error:  # the caller must not wait forever
            self.failed += 1
            _complete(done, OutcomeUnknown(f"the answer of {self.name} cannot be decoded: {error}"))
        except Exception as fault:
            _report(fault)

    def _on_lost(self) -> None:
        """Fail all requests on the lost connection. Later requests wait for the next one."""
        link, self._link = self._link, None
        assert link is not None
        self._up.clear()
        self._lost.set()
        self.now = self._down_since = asyncio.get_running_loop().time()
        calls, self._calls = self._calls, {}
        subscriptions, self._subscriptions = self._subscriptions, {}
        for ident, (done, _) in calls.items():
            self.failed += 1
            if ident <= link.written_id:
                _complete(
                    done, OutcomeUnknown(f"the connection to {self.name} broke before it answered")
                )
            else:
                _complete(done, Unavailable(f"{self.name} is down; retry"))
        for subscription in subscriptions.values():
            _complete(subscription.on_end, Unavailable(f"the connection to {self.name} broke"))

    def _fail_waiting(self, error: Unavailable) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for type_, _, ident, _ in waiting:
            self.failed += 1
            if type_ == FrameType.CALL and ident in self._calls:
                _complete(self._calls.pop(ident)[0], error)
            elif type_ == FrameType.OPEN and ident in self._subscriptions:
                _complete(self._subscriptions.pop(ident).on_end, error)


def _complete(done: Callable[[Outcome], object], outcome: Outcome) -> None:
    try:
        done(outcome)
    except Exception as fault:
        _report(fault)


def _report(fault: Exception) -> None:
    """Report a failed callback, so that the other callers still get their answers."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a response callback failed", "exception": fault}
    )
