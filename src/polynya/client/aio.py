"""The asynchronous shell: the same client, streams and readers as in `blocking`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from polynya.client import streams, verbs
from polynya.client.aio_producer import AsyncProducer, OpeningProducer
from polynya.client.aio_work import AsyncWork
from polynya.client.clock import drawn_producer_id, worker_name
from polynya.client.drivers import AsyncDriver, AsyncFeed
from polynya.client.extras import extras_of
from polynya.client.handles import Position
from polynya.client.messages import Retry, Talk
from polynya.client.producing import Batching
from polynya.client.reading import Live, ReadPosition, read, tail
from polynya.client.streams import Subject, describe
from polynya.client.values import NOW, SERVER_DEFAULT, START, Consistency, Facts, Page, Record, is_local
from polynya.client.verbs import Lifetime
from polynya.client.workers import HANDLE_SECONDS, By, Worker, WorkerSettings, disband

if TYPE_CHECKING:
    from polynya.client.http import AsyncWire

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class AsyncReader(Position):
    """Iterate over it for records, or over `pages()`. It ends at the tail it found, or, of a live one, when the stream is closed.

    `offset` is where to go on after what was given last. Close it, or use it in an `async with`, to give its connection back early. Waiting
    for the next record may be cancelled, by `asyncio.timeout` for one: nothing is lost, and the next call goes on."""

    def __init__(self, wire: AsyncWire, place: ReadPosition, talk: Talk[None], *, live: bool = False) -> None:
        super().__init__(place, live=live)
        self._feed = AsyncFeed(wire, talk)

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
        """Page by page: the answers and events as they come."""
        return _Pages(self._feed, self._passed)

    async def close(self) -> None:
        await self._feed.close()


class _Pages(AsyncIterator[Page]):
    """No generator: that would be at its end when a caller is cancelled."""

    def __init__(self, feed: AsyncFeed, passed: Callable[[Page], bool]) -> None:
        self._feed = feed
        self._passed = passed

    async def __anext__(self) -> Page:
        while not self._passed(page := await anext(self._feed)):
            pass
        return page  # type: ignore[no-any-return]


def _verb(
    talk: Callable[Concatenate[Subject, Arguments], Talk[Result]],
) -> Callable[Concatenate[AsyncStream, Arguments], Coroutine[Any, Any, Result]]:
    """A method that carries out a talk about the stream."""

    async def method(stream: AsyncStream, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await AsyncDriver(stream._wire).run(talk(stream, *args, **options))

    describe(method, talk)
    return method


class AsyncStream(Subject):
    """A stream by its name, existing or not. `content_type` is asked of the server when it is not given and needed."""

    def __init__(self, wire: AsyncWire, name: str, content_type: str | None, retry: Retry) -> None:
        super().__init__(name, content_type, retry)
        self._wire = wire

    create = _verb(streams.create)
    append = _verb(streams.append)
    trim = _verb(streams.trim)
    head = _verb(streams.head)
    known_type = _verb(streams.known_type)
    exists = _verb(streams.exists)
    close = _verb(streams.close)
    delete = _verb(streams.delete)

    def with_options(self, *, headers: Mapping[str, str] | None = None, params: Mapping[str, str] | None = None) -> AsyncStream:
        """The same stream, with more custom headers and query parameters in every request, as for one call:
        `stream.with_options(headers={"traceparent": "..."}).append(record)`. Raises ValueError for a name that the client sets itself."""
        other = copy(self)
        other._wire = self._wire.extended(extras_of(headers, params))
        return other

    def producer(self, producer_id: str = "", *, epoch: int | None = None, batching: Batching | None = None) -> OpeningProducer:
        """An idempotent producer: `async with stream.producer() as producer`, or `await` it. Without an id it gets one of its own. With an
        id it takes the next epoch, or the given one if that was never used, and so fences off earlier runs of the same id."""

        async def opened() -> AsyncProducer:
            names = await AsyncDriver(self._wire).run(streams.producer_names(self, producer_id, epoch, drawn_producer_id()))
            return AsyncProducer(self._wire, names, batching or Batching(), self._retry)

        return OpeningProducer(opened)

    def read(
        self,
        offset: str = START,
        *,
        from_time: str | datetime = "",
        max_bytes: int | None = None,
        consistency: Consistency = "leader",
    ) -> AsyncReader:
        """What the stream holds from an offset to its tail, or from a time: RFC 3339, or so long ago ("10m"). `max_bytes` bounds a page.
        `consistency="local"` is content with what the asked node of a cluster has."""
        place = streams.place(self, offset, from_time, max_bytes, consistency=consistency)
        return AsyncReader(self._wire, place, read(place, self._retry))

    def tail(
        self, offset: str = NOW, *, from_time: str | datetime = "", live: Live = "auto", consistency: Consistency = "leader"
    ) -> AsyncReader:
        """What it holds from an offset or a time on, and then what comes, until it is closed. Lost connections are resumed."""
        place = streams.place(self, offset, from_time, consistency=consistency)
        return AsyncReader(self._wire, place, tail(place, self._retry, live), live=True)

    async def fork(
        self, name: str, *, offset: str | None = None, ttl_seconds: int | None = None, expires_at: str | None = None
    ) -> AsyncStream:
        """A new stream that begins with what this one holds up to an offset (None: all of it)."""
        lifetime = Lifetime(ttl_seconds=ttl_seconds, expires_at=expires_at)
        await AsyncDriver(self._wire).run(streams.fork(self, name, offset, lifetime))
        return AsyncStream(self._wire, name, self.content_type, self._retry)


class AsyncClient:
    """A server, or the nodes of a cluster: several URLs, in a list or with commas. It goes to the node that owns a stream by itself, and to
    another when one is away. It holds connections, so keep one and close it, or use it in an `async with`; it belongs to one event loop.

    `token` goes as a bearer token with every request, and so do `headers` and `params`, custom headers and query parameters; `retry` says
    how long failures that may pass are met by trying again; `verify` is False, or an `ssl.SSLContext`, for certificates that this machine
    does not know."""

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
        from polynya.client.http import AsyncWire, options_of  # httpx is loaded with the first client

        options = options_of(server, token, verify, headers, params)
        self._wire = AsyncWire(options)
        self.server = options.servers[0]
        self._retry = retry or Retry()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    def with_options(self, *, headers: Mapping[str, str] | None = None, params: Mapping[str, str] | None = None) -> AsyncClient:
        """The same client, with more custom headers and query parameters in every request. It shares this one's connections: close this
        one. Raises ValueError for a name that the client sets itself."""
        other = copy(self)
        other._wire = self._wire.extended(extras_of(headers, params))
        return other

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """The stream of this name; nothing is asked of the server yet."""
        return AsyncStream(self._wire, name, content_type, self._retry)

    def streams(self, prefix: str = "", *, consistency: Consistency = "leader") -> AsyncIterator[Facts]:
        """The streams whose names begin with `prefix`, by name."""
        return AsyncFeed(self._wire, verbs.listing(prefix, self._retry, local=is_local(consistency)))

    def share(
        self,
        group: str,
        *sources: str,
        lanes: int = 8,
        by: By = "record",
        lease_seconds: float = 30.0,
        handle_seconds: float = HANDLE_SECONDS,
        wait: bool = True,
    ) -> AsyncWork:
        """Work on the records of streams together with others: as `Client.share`, and iterated over with `async for`."""
        plan = WorkerSettings(group=group, sources=sources, lanes=lanes, by=by, lease_seconds=lease_seconds)
        return AsyncWork(self._wire, Worker(plan, worker_name(), self._retry, handle_seconds=handle_seconds), wait=wait)

    async def disband(self, group: str) -> int:
        """Delete a group and its cursors, not the streams it worked on. The number of lanes that it had."""
        return await AsyncDriver(self._wire).run(disband(group, self._retry))
