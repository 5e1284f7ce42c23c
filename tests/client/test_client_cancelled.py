"""Readers after a cancellation: they continue at their position. Broken ones report it and never
claim to be at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from polynya.client import ClientError, StreamNotFound
from polynya.client.aio.client import AsyncReader
from polynya.client.blocking.generated.client import Reader
from polynya.client.live.feeds import AsyncFeed, Feed
from polynya.client.messages import HttpRequest, HttpResponse, Retry
from polynya.client.reading import ReadPosition, read

PAGES = {"0_0": (b"[1,2]", "1_4", "false"), "1_4": (b"[3]", "2_6", "true")}
# in which what would otherwise never end has ended, on a machine that has much else to do
SECONDS = 60.0


def page(request: HttpRequest) -> HttpResponse:
    body, offset, last = PAGES[request.target.rpartition("=")[2]]
    return HttpResponse(
        200,
        {
            "content-type": "application/json",
            "stream-next-offset": offset,
            "stream-up-to-date": last,
        },
        body,
    )


class SlowWire:
    """Answers when it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may = asyncio.Semaphore(0)

    async def send(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request.target)
        await self.may.acquire()
        return page(request)


def reader_on(wire: Any, kind: type[Any] = AsyncReader) -> Any:
    position = ReadPosition("s", "0_0")
    return kind(wire, position, read(position, Retry()))


async def cancelled(awaitable: Any) -> None:
    """A caller that waits for it is cancelled once it does."""
    waiting = asyncio.ensure_future(awaitable)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def run_story(story: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(SECONDS):
            await story

    asyncio.run(within())


@pytest.mark.parametrize("by", ["records", "pages"])
def test_what_a_cancelled_caller_waited_for_is_given_to_the_next(by: str) -> None:
    async def story() -> None:
        wire = SlowWire()
        reader = reader_on(wire)
        things = aiter(reader) if by == "records" else reader.pages()
        given = []
        for _ in PAGES:
            for _ in range(3):
                await cancelled(anext(things))
            wire.may.release()
            given.append(await anext(things))
            given += [await anext(things)] if by == "records" and len(given) == 1 else []
        assert (
            [each.value for each in given] == [1, 2, 3]
            if by == "records"
            else [each.body for each in given] == [b"[1,2]", b"[3]"]
        )
        assert len(wire.asked) == len(PAGES), "nothing is asked for again"
        with pytest.raises(StopAsyncIteration):
            await anext(things)

    run_story(story())


def test_what_came_when_nobody_waited_is_not_lost() -> None:
    async def story() -> None:
        wire = SlowWire()
        reader = reader_on(wire)
        await cancelled(anext(reader))
        wire.may.release()
        for _ in range(5):
            await asyncio.sleep(0)
        assert reader.offset == "0_0"
        assert (await anext(reader)).value == 1

    run_story(story())


def test_a_reader_that_is_closed_leaves_nothing_under_way() -> None:
    async def story() -> None:
        reader = reader_on(SlowWire())
        await cancelled(anext(reader))
        assert len(asyncio.all_tasks()) > 1
        await reader.close()
        assert len(asyncio.all_tasks()) == 1
        with pytest.raises(StopAsyncIteration):
            await anext(reader)

    asyncio.run(story())


def test_one_task_at_a_time_waits_for_a_reader() -> None:
    async def story() -> None:
        wire = SlowWire()
        reader = reader_on(wire)
        first = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task is already waiting"):
            await anext(reader)
        wire.may.release()
        assert (await first).value == 1

    run_story(story())


class Failing:
    """A wire of both kinds that cannot go on."""

    def __init__(self, failure: BaseException | HttpResponse) -> None:
        self.failure = failure

    def send(self, request: HttpRequest) -> HttpResponse:
        if isinstance(self.failure, HttpResponse):
            return self.failure
        raise self.failure


class AsyncFailing(Failing):
    async def send(self, request: HttpRequest) -> HttpResponse:  # type: ignore[override]
        return super().send(request)


NOT_FOUND = HttpResponse(404, {}, b'{"error":{"code":"NOT_FOUND","message":"no such stream"}}')


@pytest.mark.parametrize(("failure", "first", "then"), [
    (NOT_FOUND, StreamNotFound, StreamNotFound),
    (ZeroDivisionError(), ZeroDivisionError, ClientError),
    (KeyboardInterrupt(), KeyboardInterrupt, ClientError),
])  # fmt: skip
def test_a_reader_that_was_broken_off_says_so_again(
    failure: Any, first: type[BaseException], then: type[BaseException]
) -> None:
    reader = reader_on(Failing(failure), Reader)
    with pytest.raises(first):
        next(reader)
    for things in (reader, reader.pages(), reader):
        with pytest.raises(then):
            next(things)


@pytest.mark.parametrize(
    ("failure", "then"), [(NOT_FOUND, StreamNotFound), (ZeroDivisionError(), ClientError)]
)
def test_and_an_asynchronous_one_too(failure: Any, then: type[BaseException]) -> None:
    async def story() -> None:
        reader = reader_on(AsyncFailing(failure))
        with pytest.raises((StreamNotFound, ZeroDivisionError)):
            await anext(reader)
        for things in (reader, reader.pages(), reader):
            with pytest.raises(then):
                await anext(things)

    run_story(story())


def test_what_is_at_its_end_stays_there() -> None:
    def nothing() -> Iterator[Any]:
        yield from ()

    async def story() -> None:
        feed = AsyncFeed(SlowWire(), nothing())  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(feed)

    run_story(story())
    feed = Feed(Failing(NOT_FOUND), nothing())  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(feed)
