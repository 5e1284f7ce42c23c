"""The server as planners, tasks and the sink use it: blocking operations of the client over one
pool of connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from polynya.base.offsets import parse_token
from polynya.client import tables, verbs
from polynya.client.blocking.generated.driver import Driver
from polynya.client.blocking.generated.wire import Wire
from polynya.client.errors import StreamGone, StreamNotFound
from polynya.client.http import options_of
from polynya.client.live.feeds import Feed
from polynya.client.messages import Operation, Retry
from polynya.client.values import Facts
from polynya.lakehouse.jobs.plan import Range
from polynya.spark.options import Connection
from polynya.wire.tables import StoreRef

Result = TypeVar("Result")
RANGES_STREAMS = 64  # streams of one request, as the server allows


class Tail(msgspec.Struct, frozen=True):
    """A stream's incarnation, first retained record, and next record."""

    uid: int
    first: int
    next: int
    content_type: str = ""
    size: int = 0  # bytes of the retained records


class TimedRange(Range, frozen=True, gc=False):
    """A range with the time of its first append."""

    time_ms: int = 0


class StreamRanges(msgspec.Struct, frozen=True):
    """The slices of a stream in the object store, in order."""

    name: str
    uid: str
    first: int  # first retained record
    next: int
    own: int  # first record that is not inherited from a fork's source
    ranges: list[TimedRange]
    end: int = 0  # the ranges have all stored records up to here; 0 from an older server


class RangesAnswer(msgspec.Struct, frozen=True):
    store: StoreRef
    streams: list[StreamRanges | None]  # None: there is no such stream


class Server:
    """Use it in a `with`."""

    def __init__(self, connection: Connection) -> None:
        self._wire = Wire(options_of(connection.server, connection.token, True))
        self._retry = Retry()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    def run(self, operation: Callable[[Retry], Operation[Result]]) -> Result:
        """Run an operation of the client that gets the policy for retries."""
        return Driver(self._wire).run(operation(self._retry))

    def tails(self, streams: Sequence[str], prefix: str | None) -> dict[str, Tail]:
        """Return the tails of the named streams, or of all under a prefix. A name without a stream
        is left out."""
        if prefix is not None:
            found: Iterator[Facts] = Feed(self._wire, verbs.listing(prefix, self._retry))
            return {facts.name: _tail(facts) for facts in found}
        named = {}
        for name in streams:
            try:
                named[name] = _tail(Driver(self._wire).run(verbs.head(name, self._retry)))
            except (StreamNotFound, StreamGone):
                continue
        return named

    def ranges(
        self, wanted: Sequence[tuple[str, int, int]]
    ) -> tuple[StoreRef, list[StreamRanges | None]]:
        """Return where records lie: (stream, first, end) each. The server flushes them first.
        An answer may end early; ask again from there."""
        found: list[StreamRanges | None] = []
        store = StoreRef("none", "")
        for at in range(0, len(wanted), RANGES_STREAMS):
            body = [
                {"name": name, "first": first, "end": end}
                for name, first, end in wanted[at : at + RANGES_STREAMS]
            ]
            answer = Driver(self._wire).run(tables.ranges(body, RangesAnswer, self._retry))
            store = answer.store
            found += answer.streams
        return store, found


def _tail(facts: Facts) -> Tail:
    end = parse_token(facts.offset) or (0, 0)
    first = parse_token(facts.retained_offset or "") or (0, 0)
    size = max(0, end[1] - first[1])
    return Tail(int(facts.incarnation or 0), first[0], end[0], facts.content_type, size)
