"""Spans of the traced requests of one core: what began and ended when, and under which parent.

A front begins the span of a request, if the `Tracer` samples it. It makes it the one in progress
(`ACTIVE`) for the work that it calls, and for the tasks that this starts. Parts below add children
while there is one. A core without a tracer has none, and reads only the variable. Ended spans wait
in a queue of the tracer with a limit, and `polynya.node.trace_export` sends them. Times are
nanoseconds of the tracer's clock.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

# W3C Trace Context, https://www.w3.org/TR/trace-context/: version, trace, parent, flags; a later
# version may have more behind them
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.ASCII,
)
_SAMPLED = 1  # the flag of a parent that is traced
_LOW = (1 << 64) - 1
SPANS_PER_REQUEST_MAX = 128  # a read of many objects has a span for each
SERVER, INTERNAL, CLIENT = "server", "internal", "client"  # kinds
Attributes = Mapping[str, str | int | bool]


def parent_of(header: str) -> tuple[int, int, bool] | None:
    """Return the trace, the parent span and the decision to sample of a `traceparent`; None if it
    is invalid."""
    found = _PARENT.fullmatch(header)
    if found is None or (found[1] == "00" and found[5]):
        return None
    return int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & _SAMPLED)


class Span:
    """A part of the work for one request. `ended` is 0 while it lasts."""

    __slots__ = (
        *("attributes", "began", "count", "ended", "error", "id", "kind", "name", "parent"),
        *("remote", "root", "trace", "tracer"),
    )

    def __init__(self, tracer: Tracer, name: str, kind: str, trace: int, parent: int) -> None:
        self.tracer = tracer
        self.name = name
        self.kind = kind
        self.trace = trace
        self.parent = parent  # 0: none
        self.remote = False  # the parent is the client's
        self.root = self
        self.id = tracer.new_id()
        self.count = 1  # spans of the request, counted by the root
        self.attributes: dict[str, str | int | bool] = {}
        self.error = ""
        self.ended = 0
        self.began = tracer.now_ns()

    @property
    def trace_id(self) -> str:
        """The id of the trace, as headers and exemplars have it."""
        return f"{self.trace:032x}"

    def child(self, name: str, attributes: Attributes | None = None, kind: str = INTERNAL) -> Span:
        """Begin a part of this span's work."""
        found = Span(self.tracer, name, kind, self.trace, self.id)
        found.root = self.root
        self.root.count += 1
        found.attributes.update(attributes or {})
        return found

    def end(self, error: str = "") -> None:
        """End the span, once; later calls do nothing."""
        if not self.ended:
            self.error = error or self.error
            self.ended = max(self.began + 1, self.tracer.now_ns())
            self.tracer.keep(self)

    def note(self, name: str, began: int, ended: int) -> None:
        """Add a child that is over."""
        found = self.child(name)
        found.began, found.ended = began, max(began + 1, ended)
        self.tracer.keep(found)


ACTIVE: ContextVar[Span | None] = ContextVar("span in progress", default=None)


def active() -> Span | None:
    """Return the span in progress. Work that outlives its request has none."""
    span = ACTIVE.get()
    return None if span is None or span.root.ended else span


def within(span: Span, work: Callable[[], Any]) -> None:
    """Call with this span in progress, also for the tasks that the work starts."""
    token = ACTIVE.set(span)
    try:
        work()
    finally:
        ACTIVE.reset(token)


@contextmanager
def step(
    name: str, attributes: Attributes | None = None, kind: str = INTERNAL
) -> Iterator[Span | None]:
    """Trace the body as a child of the span in progress, if there is one."""
    above = active()
    if above is None:
        yield None
        return
    span = above.child(name, attributes, kind)
    token = ACTIVE.set(span)
    try:
        yield span
    except BaseException as error:
        span.end(type(error).__name__)
        raise
    finally:
        ACTIVE.reset(token)
        span.end()


class Tracer:
    """The decision which requests of a core are traced, and their ended spans.

    `ratio` is the part of requests that are traced. With `follows_clients`, it is for those that
    name no trace: the others are traced if the client traces them. A full queue drops spans, and
    counts them. `random` and `bits` are those of a `random.Random`."""

    def __init__(
        self,
        *,
        ratio: float,
        follows_clients: bool,
        queue_max: int,
        now_ns: Callable[[], int],
        random: Callable[[], float],
        bits: Callable[[int], int],
    ) -> None:
        self.ratio = ratio
        self.spans = self.dropped = 0  # total: ended, and those that found no room
        self.queue: deque[Span] = deque()
        self.now_ns = now_ns
        self.on_half: Callable[[], None] = lambda: None  # the queue is half full
        self._queue_max = queue_max
        self._follows_clients = follows_clients
        self._bound = round(ratio * (1 << 64))
        self._random = random
        self.new_id = partial(self._nonzero, bits, 64)
        self._new_trace = partial(self._nonzero, bits, 128)
        self._is_chosen = False

    def choose(self) -> bool:
        """Decide about a request that names no trace, before it is parsed. `begin` keeps to it."""
        self._is_chosen = self._random() < self.ratio
        return self._is_chosen

    def begin(self, name: str, traceparent: str = "") -> Span | None:
        """Begin the span of a request, unless it is not sampled."""
        is_chosen, self._is_chosen = self._is_chosen, False
        found = parent_of(traceparent) if traceparent else None
        if found is None:
            if not is_chosen and self._random() >= self.ratio:
                return None
            return Span(self, name, SERVER, self._new_trace(), 0)
        trace, parent, is_sampled = found
        if not self._follows_clients:  # as OpenTelemetry's sampler by the id does
            is_sampled = trace & _LOW < self._bound
        if not is_sampled:
            return None
        return self.resume(name, trace, parent)

    def resume(self, name: str, trace: int, parent: int) -> Span:
        """Begin the span of a request from another core, which is a part of a traced one."""
        span = Span(self, name, SERVER, trace, parent)
        span.remote = True
        return span

    def keep(self, span: Span) -> None:
        """Queue an ended span for the export."""
        self.spans += 1
        waiting = len(self.queue)
        if waiting >= self._queue_max or (
            span.root is not span and span.root.count > SPANS_PER_REQUEST_MAX
        ):
            self.dropped += 1
            return
        self.queue.append(span)
        if waiting + 1 == (self._queue_max + 1) // 2:
            self.on_half()

    def take(self, most: int) -> list[Span]:
        """Remove and return the oldest spans."""
        return [self.queue.popleft() for _ in range(min(most, len(self.queue)))]

    @staticmethod
    def _nonzero(bits: Callable[[int], int], size: int) -> int:
        return bits(size) or 1
