"""The asynchronous shell: the same client, streams and readers as in `blocking`, awaited."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from polynya.client import verbs
from polynya.client.aio_producer import AsyncProducer
from polynya.client.aio_work import AsyncWork, worker_name
from polynya.client.lines import AsyncFeed, AsyncLine
from polynya.client.messages import Retry, Talk
from polynya.client.producing import Batching, Names
from polynya.client.readers import Position
from polynya.client.reading import Live, Place, read, tail
from polynya.client.sharing import By, Plan, Worker, disband
from polynya.client.values import JSON_TYPE, NOW, SERVER_DEFAULT, START, Appended, Created, Facts, Json, Page, Record, Trimming, time_text
from polynya.client.verbs import Lifetime

if TYPE_CHECKING:
    from polynya.client.wires import AsyncWire

Result = TypeVar("Result")


class AsyncReader(Position):
    """Iterate over it for records, or over `pages()`. It ends at the tail it found, or, of a live one, when the stream is closed.

    `offset` is where to go on after what was given last. Close it, or use it in an `async with`, to give its connection back early."""

    def __init__(self, wire: AsyncWire, place: Place, talk: Talk[None]) -> None:
        super().__init__(place)
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

    async def pages(self) -> AsyncIterator[Page]:
        """Page by page: the answers and events as they come."""
        async for page in self._feed:
            self._pass(page)
            yield page

    async def close(self) -> None:
        await self._feed.close()


class AsyncStream:
    """A stream by its name, existing or not. `content_type` is asked of the server when it is not given and needed."""

    def __init__(self, wire: AsyncWire, name: str, content_type: str | None, retry: Retry) -> None:
        self._wire = wire
        self._retry = retry
        self.name = name
        self.content_type = content_type

    async def create(
        self,
        *,
        content_type: str = "",
        ttl_seconds: int | None = None,
        expires_at: str | None = None,
        retain_seconds: int | None = None,
        retain_bytes: int | None = None,
        closed: bool = False,
    ) -> Created:
        """Create it, as JSON unless said otherwise; one that exists with the same settings is fine. Raises `StreamExists`.

        It goes when nobody used it for `ttl_seconds`, or at `expires_at` (RFC 3339). Its records stay for `retain_seconds`, and as long as
        `retain_bytes` of newer ones do not push them out."""
        wanted = content_type or self.content_type or JSON_TYPE
        lifetime = Lifetime(ttl_seconds=ttl_seconds, expires_at=expires_at, retain_seconds=retain_seconds, retain_bytes=retain_bytes)
        made = await self._run(verbs.create(self.name, wanted, lifetime, self._retry, closed=closed))
        self.content_type = wanted
        return made

    async def append(self, *records: Json, sequence: str | None = None, close: bool = False) -> Appended:
        """Append one or more records, all or none, and wait until they are durable. Into a JSON stream go values; into others bytes or
        text. `sequence` must be greater, as text, than that of the append before. `close` closes the stream with it.

        Raises `Refused` and `Unavailable` when nothing was applied, `OutcomeUnknown` when an answer was lost: a `producer()` repeats
        safely."""
        content_type = await self.known_type()
        body = verbs.body_of(records, content_type)
        return await self._run(verbs.append(self.name, content_type, body, self._retry, sequence=sequence, close=close))

    async def producer(self, producer_id: str = "", *, epoch: int | None = None, batching: Batching | None = None) -> AsyncProducer:
        """An idempotent producer: `async with await stream.producer()`. Without an id it gets one of its own. With an id it takes the next
        epoch, or the given one if that was never used, and so fences off earlier runs of the same id."""
        names = Names(
            stream=self.name,
            content_type=await self.known_type(),
            producer_id=producer_id or f"py-{secrets.token_hex(8)}",
            epoch=epoch if producer_id else 0,
            fresh=not producer_id,
        )
        return AsyncProducer(self._wire, names, batching or Batching(), self._retry)

    def read(self, offset: str = START, *, from_time: str | datetime = "", max_bytes: int | None = None) -> AsyncReader:
        """What the stream holds from an offset to its tail, or from a time: RFC 3339, or so long ago ("10m"). `max_bytes` bounds a page."""
        place = Place(self.name, offset, max_bytes, from_time=time_text(from_time))
        return AsyncReader(self._wire, place, read(place, self._retry))

    def tail(self, offset: str = NOW, *, from_time: str | datetime = "", live: Live = "auto") -> AsyncReader:
        """What it holds from an offset or a time on, and then what comes, until it is closed. Lost connections are resumed."""
        place = Place(self.name, offset, from_time=time_text(from_time))
        return AsyncReader(self._wire, place, tail(place, self._retry, live))

    async def trim(
        self,
        *,
        before: str | None = None,
        before_time: str | datetime | None = None,
        keep_bytes: int | None = None,
        keep_seconds: int | None = None,
    ) -> Trimming:
        """Let go of the oldest records: those before an offset or a time, or all but so much. Say exactly one."""
        time = None if before_time is None else time_text(before_time)
        body = verbs.trim_body(before=before, before_time=time, keep_bytes=keep_bytes, keep_age_seconds=keep_seconds)
        return await self._run(verbs.trim(self.name, body, self._retry))

    async def head(self) -> Facts:
        """What is known of it. Raises `StreamNotFound`, `StreamGone`."""
        facts = await self._run(verbs.head(self.name, self._retry))
        self.content_type = facts.content_type
        return facts

    async def exists(self) -> bool:
        return await self._run(verbs.exists(self.name, self._retry))

    async def close(self) -> Appended:
        """Nothing can be appended any more; readers are told the end."""
        return await self._run(verbs.close(self.name, self._retry))

    async def delete(self, *, missing_ok: bool = False) -> bool:
        """Whether there was one to delete."""
        return await self._run(verbs.delete(self.name, self._retry, missing_ok=missing_ok))

    async def fork(
        self, name: str, *, offset: str | None = None, ttl_seconds: int | None = None, expires_at: str | None = None
    ) -> AsyncStream:
        """A new stream that begins with what this one holds up to an offset (None: all of it)."""
        lifetime = Lifetime(ttl_seconds=ttl_seconds, expires_at=expires_at)
        await self._run(verbs.fork(name, self.name, offset, lifetime, self._retry))
        return AsyncStream(self._wire, name, self.content_type, self._retry)

    async def known_type(self) -> str:
        if self.content_type is None:
            await self.head()
        assert self.content_type is not None
        return self.content_type

    async def _run(self, talk: Talk[Result]) -> Result:
        return await AsyncLine(self._wire).run(talk)


class AsyncClient:
    """A server. It holds connections, so keep one and close it, or use it in an `async with`; it belongs to one event loop.

    `token` goes as a bearer token with every request; `retry` says how long failures that may pass are met by trying again; `verify` is
    False, or an `ssl.SSLContext`, for certificates that this machine does not know."""

    def __init__(self, server: str = SERVER_DEFAULT, *, token: str = "", retry: Retry | None = None, verify: Any = True) -> None:
        from polynya.client.wires import AsyncWire, options_of  # httpx is loaded with the first client

        options = options_of(server, token, verify)
        self.server = options.server
        self._wire = AsyncWire(options)
        self._retry = retry or Retry()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._wire.close()

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """The stream of this name; nothing is asked of the server yet."""
        return AsyncStream(self._wire, name, content_type, self._retry)

    def streams(self, prefix: str = "") -> AsyncIterator[Facts]:
        """The streams whose names begin with `prefix`, by name."""
        return AsyncFeed(self._wire, verbs.listing(prefix, self._retry))

    def share(
        self,
        group: str,
        *sources: str,
        lanes: int = 8,
        by: By = "record",
        lease_seconds: float = 30.0,
        handle_seconds: float = 600.0,
        wait: bool = True,
    ) -> AsyncWork:
        """Work on the records of streams together with others: every worker of the group that names the same `sources` (streams, and at most
        one pattern: `*` is a segment, `**` any number) is given some of them, and each record goes to one, at least once. Iterate over
        it; coming back for the next job acknowledges the one before. The group works on what is appended after it was made.

        As many workers are busy at once as there are `lanes`. `by="stream"` keeps the order of each stream: all its records go to one lane.
        While a record is handled its lease is kept up, for `handle_seconds` at most; a worker that dies loses it after `lease_seconds`.
        `wait=False` ends when nothing is left to do. Raises `StreamExists` when the group was made with other sources or lanes."""
        plan = Plan(group=group, sources=sources, lanes=lanes, by=by, lease_seconds=lease_seconds)
        return AsyncWork(self._wire, Worker(plan, worker_name(), self._retry), handle_seconds=handle_seconds, wait=wait)

    async def disband(self, group: str) -> int:
        """Delete a group and its cursors, not the streams it worked on. The number of lanes that it had."""
        return await AsyncLine(self._wire).run(disband(group, self._retry))
