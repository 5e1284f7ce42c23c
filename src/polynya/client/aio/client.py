"""The asyncio client: clients, streams and readers whose operations are awaited.

`scripts/blocking_client.py` makes the blocking client from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from polynya.base.limits import SQL_ROWS_DEFAULT
from polynya.client import streams, tables, verbs
from polynya.client.aio.driver import AsyncDriver
from polynya.client.aio.producer import OpeningProducer
from polynya.client.aio.work import AsyncWork
from polynya.client.clock import drawn_producer_id, worker_name
from polynya.client.extras import extras_of
from polynya.client.handles import Position, ReaderOffsets
from polynya.client.live.feeds import AsyncFeed
from polynya.client.live.many import ManyLive, ManyPosition, StreamEvent, tail_many
from polynya.client.messages import Operation, Retry
from polynya.client.operations import attributes as stream_attributes
from polynya.client.operations import reducers, tokens
from polynya.client.operations import snapshots as stream_snapshots
from polynya.client.operations.many_appends import (
    AppendOutcome,
    StreamAppend,
    append_all,
    append_many,
)
from polynya.client.operations.reducers import ReducerInfo
from polynya.client.operations.tokens import ShortToken
from polynya.client.producing import Batching
from polynya.client.reading import Live, ReadPosition, read, tail
from polynya.client.streams import Subject, describe
from polynya.client.tables import SqlAnswer, TableInfo
from polynya.client.values import (
    NOW,
    SERVER_DEFAULT,
    START,
    Consistency,
    Facts,
    Page,
    Record,
    is_local,
)
from polynya.client.verbs import Lifetime
from polynya.client.worker_settings import By, WorkerSettings
from polynya.client.workers import HANDLE_SECONDS, Worker, disband

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncWire

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class AsyncReader(Position):
    """Iterate over it for records, or over `pages()` for pages.

    A reader from `read()` ends at the tail. A reader from `tail()` ends when the stream is closed.
    `offset` is the position after the last record handed out; pass it to a new reader to resume.
    Close the reader, or use it in an `async with`, to release its connection early. Cancelling a
    wait, for example by `asyncio.timeout`, loses no records: the next call resumes it."""

    def __init__(
        self,
        wire: AsyncWire,
        position: ReadPosition,
        operation: Operation[None],
        *,
        live: bool = False,
    ) -> None:
        super().__init__(position, live=live)
        self._feed = AsyncFeed(wire, operation)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while (record := self._record()) is None:
            self._take(await anext(self._feed))
        return record

    def pages(self) -> AsyncIterator[Page]:
        """Iterate over whole pages: one per response or event."""
        return _Pages(self._feed, self._passed)

    async def close(self) -> None:
        """Release the connection."""
        await self._feed.close()


class AsyncManyReader(ReaderOffsets):
    """Iterate over it for the records of many streams, each with its `stream` and `offset`. Iterate
    over `events()` for whole events: they also tell which streams began, closed or were deleted.

    A reader of a list ends when all its streams are closed or deleted. Close the reader, or use it
    in an `async with`, to release its connection."""

    def __init__(
        self, wire: AsyncWire, position: ManyPosition, retry: Retry, live: ManyLive
    ) -> None:
        super().__init__(position)
        self._feed = AsyncFeed(wire, tail_many(position, retry, live))

    async def __aenter__(self) -> AsyncManyReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while (record := self._record()) is None:
            self._take(await anext(self._feed))
        return record

    def events(self) -> AsyncIterator[StreamEvent]:
        """Iterate over whole events."""
        return _Events(self._feed, self._passed)

    async def close(self) -> None:
        """Release the connection."""
        await self._feed.close()


class _Events(AsyncIterator[StreamEvent]):
    """Iterate over events, also after a wait was cancelled."""

    def __init__(self, feed: AsyncFeed, passed: Callable[[StreamEvent], None]) -> None:
        self._feed = feed
        self._passed = passed

    async def __anext__(self) -> StreamEvent:
        event: StreamEvent = await anext(self._feed)
        self._passed(event)
        return event


class _Pages(AsyncIterator[Page]):
    """Iterate over pages. A generator would end when a wait is cancelled or fails; this iterator
    survives."""

    def __init__(self, feed: AsyncFeed, passed: Callable[[Page], bool]) -> None:
        self._feed = feed
        self._passed = passed

    async def __anext__(self) -> Page:
        while not self._passed(page := await anext(self._feed)):
            pass
        return page  # type: ignore[no-any-return]


def _verb(
    operation: Callable[Concatenate[Subject, Arguments], Operation[Result]],
) -> Callable[Concatenate[AsyncStream, Arguments], Coroutine[Any, Any, Result]]:
    """Return a method that runs a stream operation."""

    async def method(
        stream: AsyncStream, /, *args: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        return await AsyncDriver(stream._wire).run(operation(stream, *args, **options))

    describe(method, operation)
    return method


class AsyncStream(Subject):
    """A handle to a stream by name; the stream need not exist. The client fetches a missing
    `content_type` from the server when it needs it."""

    def __init__(self, wire: AsyncWire, name: str, content_type: str | None, retry: Retry) -> None:
        super().__init__(name, content_type, retry)
        self._wire = wire

    create = _verb(streams.create)
    append = _verb(streams.append)
    trim = _verb(streams.trim)
    set_retention = _verb(streams.set_retention)
    head = _verb(streams.head)
    known_type = _verb(streams.known_type)
    exists = _verb(streams.exists)
    close = _verb(streams.close)
    delete = _verb(streams.delete)
    attributes = _verb(stream_attributes.attributes)
    set_attributes = _verb(stream_attributes.set_attributes)
    publish_snapshot = _verb(stream_snapshots.publish_snapshot)
    snapshots = _verb(stream_snapshots.snapshots)
    snapshot = _verb(stream_snapshots.snapshot)
    delete_snapshot = _verb(stream_snapshots.delete_snapshot)
    bootstrap = _verb(stream_snapshots.bootstrap)
    state = _verb(reducers.state)

    def with_options(
        self, *, headers: Mapping[str, str] | None = None, params: Mapping[str, str] | None = None
    ) -> AsyncStream:
        """Return a handle that adds custom headers and query parameters to every request.

        For a single call: `stream.with_options(headers={"traceparent": "..."}).append(record)`.
        Raises ValueError for names that the client sets."""
        other = copy(self)
        other._wire = self._wire.extended(extras_of(headers, params))
        return other

    def producer(
        self, producer_id: str = "", *, epoch: int | None = None, batching: Batching | None = None
    ) -> OpeningProducer:
        """Return an idempotent producer: use `async with stream.producer() as producer`, or `await`
        it.

        Without an id the producer draws a random one. With an id it takes the next epoch and
        thereby fences earlier runs of the same id. A given `epoch` must never have been used for
        the id."""
        return OpeningProducer(
            self._wire,
            lambda: streams.producer_names(self, producer_id, epoch, drawn_producer_id()),
            batching or Batching(),
            self._retry,
        )

    def read(  # noqa: PLR0913 (one option each)
        self,
        offset: str = START,
        *,
        from_time: str | datetime = "",
        from_record_time: str | datetime = "",
        record: int | None = None,
        tail_records: int | None = None,
        max_bytes: int | None = None,
        max_records: int | None = None,
        consistency: Consistency = "leader",
        whole_records: bool = False,
    ) -> AsyncReader:
        """Read from an offset, or from a time, up to the tail.

        `from_time` is RFC 3339 or an age ("10m"). `from_record_time` is so, too, and goes by the
        times that clients gave their records. `record` is the number of the first record, and
        `tail_records` begins so many records before the tail. `max_bytes` and `max_records` limit
        one page.
        `consistency="local"` accepts the possibly stale copy of the contacted node. With
        `whole_records` each record has its key, headers and timestamp."""
        position = streams.position(
            self,
            offset,
            streams.begin_of(from_time, from_record_time, record, tail_records),
            max_bytes,
            max_records=max_records,
            consistency=consistency,
            whole=whole_records,
        )
        return AsyncReader(
            self._wire, position, streams.pages(self, position, read(position, self._retry))
        )

    def tail(  # noqa: PLR0913 (one option each)
        self,
        offset: str = NOW,
        *,
        from_time: str | datetime = "",
        from_record_time: str | datetime = "",
        record: int | None = None,
        tail_records: int | None = None,
        live: Live = "auto",
        consistency: Consistency = "leader",
        whole_records: bool = False,
    ) -> AsyncReader:
        """Read from an offset or a time, then follow new records until the stream is closed. Lost
        connections are resumed. The other starts and `whole_records`: as in `read`."""
        position = streams.position(
            self,
            offset,
            streams.begin_of(from_time, from_record_time, record, tail_records),
            consistency=consistency,
            whole=whole_records,
        )
        found = streams.pages(self, position, tail(position, self._retry, live))
        return AsyncReader(self._wire, position, found, live=True)

    async def fork(
        self,
        name: str,
        *,
        offset: str | None = None,
        ttl_seconds: int | None = None,
        expires_at: str | None = None,
    ) -> AsyncStream:
        """Create a stream that starts with the records of this one up to an offset (None: the
        tail)."""
        lifetime = Lifetime(ttl_seconds=ttl_seconds, expires_at=expires_at)
        await AsyncDriver(self._wire).run(streams.fork(self, name, offset, lifetime))
        return AsyncStream(self._wire, name, self.content_type, self._retry)


class AsyncClient:
    """A client of one server, or of the nodes of one cluster.

    Pass several URLs as a list, or separated by commas. The client sends requests to the node that
    owns a stream, and fails over when a node is down. It pools connections: keep one client and
    close it, or use it in an `async with`. It belongs to one event loop.

    `token` is sent as a bearer token, and `headers` and `params` as custom headers and query
    parameters, with every request. `retry` is the policy for transient failures. `verify` is False
    or an `ssl.SSLContext`, for certificates that this machine does not trust."""

    def __init__(
        self,
        server: str | Sequence[str] = SERVER_DEFAULT,
        *,
        token: str = "",
        retry: Retry | None = None,
        verify: Any = True,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:
        # httpx is loaded with the first client
        from polynya.client.aio.wire import AsyncWire
        from polynya.client.http import options_of

        options = options_of(server, token, verify, headers, params)
        self._wire = AsyncWire(options)
        self.server = options.servers[0]
        self._retry = retry or Retry()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the pooled connections."""
        await self._wire.close()

    def with_options(
        self, *, headers: Mapping[str, str] | None = None, params: Mapping[str, str] | None = None
    ) -> AsyncClient:
        """Return a client that adds custom headers and query parameters to every request.

        It shares the connections of this client; close this one. Raises ValueError for names that
        the client sets."""
        other = copy(self)
        other._wire = self._wire.extended(extras_of(headers, params))
        return other

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """Return a handle to the stream of this name. Sends no request."""
        return AsyncStream(self._wire, name, content_type, self._retry)

    def streams(
        self, prefix: str = "", *, consistency: Consistency = "leader"
    ) -> AsyncIterator[Facts]:
        """List the streams whose names start with `prefix`, sorted by name."""
        return AsyncFeed(
            self._wire, verbs.listing(prefix, self._retry, local=is_local(consistency))
        )

    async def append_many(self, appends: Sequence[StreamAppend]) -> list[AppendOutcome]:
        """Append to up to 1,000 streams in one request, and return the outcome of each append, in
        their order. One that is refused does not affect the others. Raises ValueError."""
        return await AsyncDriver(self._wire).run(append_many(appends, self._retry))

    async def append_all(self, appends: Sequence[StreamAppend]) -> list[AppendOutcome]:
        """Append to up to 64 streams, all or nothing, and return the outcome of each,
        in their order. An append that has only `if_match` is a condition on its stream. If one is
        refused, none is applied, and the error names it. Raises ValueError."""
        return await AsyncDriver(self._wire).run(append_all(appends, self._retry))

    def tail_many(
        self,
        *streams: str,
        offset: str = START,
        offsets: Mapping[str, str] | None = None,
        consistency: Consistency = "leader",
        whole_records: bool = False,
        live: ManyLive = "sse",
    ) -> AsyncManyReader:
        """Follow many streams on one connection: up to 1,000 names, or one pattern such as
        `runs/*`, or one prefix that ends with a slash. Streams that are created later join.

        Streams begin at `offset`, which is START or NOW, but those in `offsets` at theirs. Lost
        connections are resumed. `whole_records`: as in `AsyncStream.read`. `live="long-poll"` is
        for connections that do not pass events. Raises ValueError."""
        position = ManyPosition(
            streams,
            offset,
            offsets=offsets or {},
            local=is_local(consistency),
            whole=whole_records,
        )
        return AsyncManyReader(self._wire, position, self._retry, live)

    async def mint_token(
        self,
        *,
        stream: str | None = None,
        prefix: str | None = None,
        verbs: Sequence[str] = ("read",),
        expires_in_seconds: float = 600.0,
    ) -> ShortToken:
        """Mint a token for a page, for one stream or one prefix, with `read`, `append` or `create`
        as far as this client's own token has them. It ends within the hour."""
        wanted = tokens.Wanted(stream, prefix, tuple(verbs), expires_in_seconds)
        return await AsyncDriver(self._wire).run(tokens.mint(wanted, self._retry))

    async def reducers(self) -> list[ReducerInfo]:
        """List the reducers, with the streams on which they are faulted."""
        return await AsyncDriver(self._wire).run(reducers.listing(self._retry))

    async def put_reducer(  # noqa: PLR0913 (one option each)
        self,
        name: str,
        *,
        pattern: str,
        builtin: str = "",
        module: str = "",
        key: str = "",
        every_records: int | None = None,
        every_bytes: int | None = None,
        every_seconds: int | None = None,
        retain: bool = False,
    ) -> ReducerInfo:
        """Bind a builtin reducer, or the module with this SHA-256, to the streams of a pattern, and
        return it. `key`: the JSON pointer of the keys of `latest`. A worker publishes after one of
        the thresholds. With `retain` the streams keep no more records than its snapshots need."""
        wanted = reducers.Wanted(
            pattern=pattern,
            builtin=builtin,
            module=module,
            key=key,
            every_records=every_records,
            every_bytes=every_bytes,
            every_seconds=every_seconds,
            retain=retain,
        )
        return await AsyncDriver(self._wire).run(reducers.put(name, wanted, self._retry))

    async def remove_reducer(self, name: str) -> bool:
        """Remove a reducer, whose snapshots stay; return False if there is none."""
        return await AsyncDriver(self._wire).run(reducers.remove(name, self._retry))

    async def sql(self, query: str, *, rows: int = SQL_ROWS_DEFAULT, as_of: str = "") -> SqlAnswer:
        """Run one SELECT over tables on the server, for at most `rows` rows (10,000 at most).
        `as_of` is a time, a snapshot or a tag: the tables are read as they were."""
        return await AsyncDriver(self._wire).run(tables.query(query, rows, self._retry, as_of))

    async def tables(self) -> list[TableInfo]:
        """List the tables whose streams may all be read."""
        return await AsyncDriver(self._wire).run(tables.listing(self._retry))

    async def table(self, name: str) -> TableInfo:
        """Return a table. Raises `Refused` without one."""
        return await AsyncDriver(self._wire).run(tables.find(name, self._retry))

    async def create_table(
        self,
        name: str,
        prefix: str,
        *,
        hold: bool = False,
        columns: dict[str, str] | None = None,
        partitions: Sequence[str] = (),
    ) -> TableInfo:
        """Create a table of all streams whose names start with `prefix`, or return it if it exists
        with the same options. `columns` declares the types of fields. With `hold`, retention waits
        for the table."""
        body = tables.create_body(prefix, hold=hold, columns=columns, partitions=partitions)
        return await AsyncDriver(self._wire).run(tables.create(name, body, self._retry))

    def share(
        self,
        group: str,
        *sources: str,
        lanes: int = 8,
        by: By = "record",
        lease_seconds: float = 30.0,
        handle_seconds: float = HANDLE_SECONDS,
        wait: bool = True,
        max_attempts: int | None = None,
    ) -> AsyncWork:
        """Join a worker group and share the records of its source streams.

        All workers of a group name the same `sources`: streams, and at most one pattern (`*`
        matches a segment, `**` any number). Each record goes to one worker, at least once. Iterate
        for jobs; fetching the next job acknowledges the previous one. The group receives the
        records appended after its creation.

        At most `lanes` workers are busy at once. `by="stream"` preserves the order of each stream,
        and keeps a stream at one worker while that worker lives: the lanes are shared evenly, and a
        worker without a heartbeat for `lease_seconds` loses its lanes to the others. A lease is
        renewed while a record is handled, for `handle_seconds` at most. The lease of a dead worker
        expires after `lease_seconds`. `wait=False` ends when no work is left for this worker.

        A record that failed `max_attempts` times (`Job.retry`, or an exception in the `with` block)
        goes to the stream `groups/GROUP/dead-letters`. Raises `StreamExists` when the group exists
        with other sources, lanes or `max_attempts`."""
        plan = WorkerSettings(
            group=group,
            sources=sources,
            lanes=lanes,
            by=by,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
        )
        return AsyncWork(
            self._wire,
            Worker(plan, worker_name(), self._retry, handle_seconds=handle_seconds),
            wait=wait,
        )

    async def disband(self, group: str) -> int:
        """Delete a group and its cursors, but not its source streams. Return the number of lanes
        that it had."""
        return await AsyncDriver(self._wire).run(disband(group, self._retry))
