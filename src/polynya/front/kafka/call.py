"""One request as its handler sees it: the call, its connection, and what the connection's requests
share.

A handler goes through a request of many elements by `in_turns`, so that other connections have turns
between some of them. A large request is decoded, and a large answer encoded, in a thread that gives
the interpreter back every few milliseconds; one at a time for each core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import Any, Protocol, TypeVar

from polynya.base.limits import KAFKA_ELEMENTS_PER_TURN
from polynya.base.spans import Span
from polynya.front.common.pipeline import ResponseQueue
from polynya.front.kafka.auth.caller import Caller
from polynya.front.kafka.auth.sasl import Exchange
from polynya.front.kafka.context import Context
from polynya.front.kafka.fetch_sessions.session import FetchSession
from polynya.front.kafka.request_memory import Holding
from polynya.front.kafka.tails import ParkedFetch
from polynya.wire.kafka.messages import APIS, Header, encode_response, read_header
from polynya.wire.kafka.primitives import Bytes

_T = TypeVar("_T")
_NOTHING = memoryview(b"")
PRODUCE, FETCH = 0, 1  # keys


class RepeatedRequest(Protocol):
    """A Fetch that was answered without records, and may come again."""

    def is_same(self, call: Call) -> bool:
        """Report whether a request is this one again, and its answer still true."""
        ...

    async def answered(self, call: Call) -> float:
        """Answer if nothing changes. Else return the seconds that are left of the wait; -1: it is
        answered."""
        ...

    def end(self) -> None:
        """Wait nowhere: another Fetch follows, or the connection is lost."""
        ...


class Session:
    """The state that the requests of one connection share."""

    def __init__(self) -> None:
        self.opened = 0.0  # the time of the first request
        self.sasl: Exchange | None = None  # the authentication in progress
        self.software = ("", "")  # the client's library and its version, if it has told them
        self.is_sasl_raw = False  # its messages come without a header
        # partitions of failed batches, until the answer has left: what the client pipelined behind
        # them is refused, as a gap would otherwise be judged without the failed batch
        self.failed: dict[str, int] = {}  # the number of the request
        self.proposed: dict[str, int] = {}  # batches without an outcome, by partition
        # when a partition first, and last, lacked an earlier batch
        self.gaps: dict[str, tuple[float, float]] = {}
        self.producing: asyncio.Task[None] | None = None  # the last Produce that has to wait
        self.fetching = asyncio.Lock()  # one Fetch response in memory at a time
        self.parked: ParkedFetch | None = None  # the Fetch that waits for records
        self.repeated: RepeatedRequest | None = None  # the last Fetch, if it got no records
        self.fetches: FetchSession | None = None  # that the client uses
        # the producer whose commit came before the first batch of its transaction
        self.early_commit: tuple[str, int, int] | None = None

    def concluded(self, name: str) -> None:
        """Count the outcome of a batch that was proposed to this partition."""
        left = self.proposed[name] - 1
        if left:
            self.proposed[name] = left
        else:
            del self.proposed[name]

    def forget_failed(self, sent: int) -> None:
        """Forget the failed batches of the requests before `sent`, whose answers have left."""
        self.failed = {name: each for name, each in self.failed.items() if each >= sent}


class Connection(Protocol):
    """The connection of a request, as handlers and the core's table of connections use it."""

    @property
    def context(self) -> Context: ...
    @property
    def session(self) -> Session: ...
    @property
    def caller(self) -> Caller: ...
    @property
    def remote(self) -> str:
        """The peer's address."""
        ...

    @property
    def responses(self) -> ResponseQueue: ...

    is_ending: bool  # no further requests are read; those in work are answered at once

    def authenticated(self) -> None:
        """Count the connection among those of known callers."""
        ...

    def complain(self, said: str, error: Exception | None = None) -> None:
        """Log why the connection is closed."""
        ...

    def mute(self, seconds: float) -> int:
        """Read no requests for some time; return it in milliseconds."""
        ...

    def hold(self) -> None:
        """Take no further request until `go_on_after`."""
        ...

    def go_on_after(self, error: BaseException | None) -> None:
        """Take the next requests after a held one that was decoded, or close if it failed."""
        ...

    def steer(self) -> None:
        """Look again whether to read: the core's budget has changed."""
        ...

    def sweep(self, tick: int) -> None:
        """Close the connection if it is idle for long, or stuck in a request or an answer."""
        ...

    def stop(self) -> None:
        """Read no further requests, and close after the answers to those in work."""
        ...

    def close(self) -> None:
        """Close after the bytes that were written."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Call:
    """One request: its connection, its header, and the way to answer it."""

    __slots__ = (
        "api",
        "began",
        "caller",
        "connection",
        "context",
        "data",
        "header",
        "holding",
        "is_woken",
        "number",
        "session",
        "span",
        "throttle_ms",
        "version",
        "worked",
    )

    def __init__(
        self, connection: Connection, number: int, data: memoryview, holding: Holding | None
    ) -> None:
        """`number`: of the request on its connection. `holding`: the memory of a large one."""
        self.began = perf_counter()  # 0.0: the time of the answer does not count
        self.is_woken = False  # a Fetch that waited, and got records
        self.connection = connection
        self.context = connection.context
        self.session = connection.session
        self.caller = connection.caller  # the one who asks: what it may do
        self.number = number
        self.holding = holding
        self.data = data
        self.header: Header = read_header(data)
        self.version = self.header.version  # of the request and of its answer
        self.api = APIS.get(self.header.key)
        self.throttle_ms = 0  # the client is over its limits by so much
        self.worked = 0  # elements of the request, or of the answer
        self.span: Span | None = None  # of a traced request

    def encoded(self, message: Any) -> list[Bytes]:
        """Return an answer, a message of the request's version, as a frame."""
        assert self.api is not None
        if self.throttle_ms and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = self.throttle_ms
        return encode_response(self.api, self.version, self.header.correlation, message)

    def send(self, pieces: list[Bytes]) -> None:
        """Answer with an encoded frame, or with nothing."""
        meter, key = self.caller.meter, self.header.key
        is_charged = key == FETCH and self.caller.guarded
        if meter is not None or is_charged:
            size = sum(map(len, pieces))
            if meter is not None:
                meter.charge(size)
            if is_charged:
                self.caller.charge_fetched(size)
        if self.holding is not None:
            self.drop()
        self.data = _NOTHING
        self.connection.responses.send(self.number, pieces)
        if key <= FETCH and self.began:
            counters = self.context.counters
            found = counters.produce_seconds
            if key == FETCH:
                found = counters.woken_fetch_seconds if self.is_woken else counters.fetch_seconds
            seconds = perf_counter() - self.began
            found.observe(seconds)
            if self.span is not None:
                found.remember(seconds, "trace_id", self.span.trace_id)
        if self.span is not None:
            self.span.end()

    def waited(self, *, is_woken: bool) -> None:
        """Note that a Fetch waited: if records woke it, its time counts from now."""
        self.is_woken, self.began = is_woken, perf_counter() if is_woken else 0.0

    def drop(self) -> None:
        """Return the memory of the request."""
        self.data = _NOTHING
        holding, self.holding = self.holding, None
        if holding is not None:
            holding.release()

    def fail(self, partition: str) -> None:
        """Refuse what the client has pipelined behind a failed batch, until the answer has left."""
        self.session.failed[partition] = self.number
        self.connection.responses.is_watched = True


async def in_turns(call: Call, items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the elements of a request, and let others have the loop now and then."""
    for each in items:
        yield each
        if count(call):
            await asyncio.sleep(0)


def count(call: Call, elements: int = 1) -> bool:
    """Count elements that were worked on; return True if the turn is over."""
    before = call.worked // KAFKA_ELEMENTS_PER_TURN
    call.worked += elements
    return call.worked // KAFKA_ELEMENTS_PER_TURN > before


async def in_thread(coding: asyncio.Lock, work: Callable[[], _T]) -> _T:
    """Decode or encode a large message without taking the loop. `coding`: one at a time."""
    async with coding:
        return await asyncio.to_thread(work)
