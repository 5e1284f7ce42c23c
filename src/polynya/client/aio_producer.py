"""The asynchronous shell of a producer: a task for each request that may be under way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from polynya.client.clock import heard
from polynya.client.errors import ProducerFailed
from polynya.client.handles import ProducerProgress
from polynya.client.messages import Retry
from polynya.client.producing import Batching, Names, ProducerCore
from polynya.client.values import Appended, Json

if TYPE_CHECKING:
    from polynya.client.http import AsyncWire


class AsyncReceipt:
    """Of a batch: await it for what became of it. Nobody has to; a caller that is cancelled takes nothing from the others."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Appended]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def settle(self, result: Appended | ProducerFailed) -> None:
        if isinstance(result, Appended):
            self._future.set_result(result)
        else:
            self._future.set_exception(result)
            self._future.exception()  # it was looked at: whoever does not await the receipt hears of it from `flush`

    def __await__(self) -> Generator[Any, None, Appended]:
        return asyncio.shield(self._future).__await__()


class OpeningProducer:
    """A producer that is still to ask what its stream holds: enter it, or await it, once. Nothing happens before that."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, AsyncProducer]]) -> None:
        self._opened = opened
        self._producer: AsyncProducer | None = None

    def __await__(self) -> Generator[Any, Any, AsyncProducer]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncProducer:
        self._producer = await self._opened()
        return self._producer

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        assert self._producer is not None, "it was entered"
        await self._producer.__aexit__(kind, *rest)


class AsyncProducer(ProducerProgress):
    """Appends in the order in which they came, each stored once. Use it in an `async with`: the end of the block waits until everything is
    durable, and raises `ProducerFailed` if something cannot be."""

    def __init__(self, wire: AsyncWire, names: Names, batching: Batching, retry: Retry) -> None:
        super().__init__(ProducerCore(names, batching, retry))
        self._wire = wire
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._tasks = [loop.create_task(self._work(), name=f"producer-{number}") for number in range(batching.in_flight)]

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):  # a cancellation does not wait for the server
            await self.abandon()
        else:
            await self.close()

    async def append(self, record: Json) -> AsyncReceipt:
        """Take one record; it leaves soon, in a batch. Waits while the buffer is full. Await the receipt to know that the record is durable;
        nobody has to. Raises TypeError and ValueError for what is no record, `ProducerFailed` when the producer has failed."""
        data = self._core.encode(record)
        while not self._core.has_room(len(data)):
            await self._news.wait()
        batch = self._core.offer(data, time.monotonic())
        began = batch.receipt is None
        if began:
            batch.receipt = AsyncReceipt(self._loop.create_future())
        if began or self._core.is_full:
            self._tell()
            await asyncio.sleep(0)  # a loop of appends must let what is due leave
        assert isinstance(batch.receipt, AsyncReceipt)
        return batch.receipt

    async def close_stream(self, *records: Json) -> Appended:
        """Close the stream: after all that was appended, and with the given last records, all or none. Wait until it is done. Called again
        without records it answers the same. Raises `ProducerFailed`; TypeError and ValueError for what is no record."""
        batch = self._core.close_stream([self._core.encode(record) for record in records])
        if batch.receipt is None:
            batch.receipt = AsyncReceipt(self._loop.create_future())
        self._tell()
        assert isinstance(batch.receipt, AsyncReceipt)
        return await batch.receipt

    async def flush(self) -> None:
        """Wait until all that was appended is durable. Raises `ProducerFailed`."""
        end = self._core.flush()
        self._tell()
        while not self._core.is_settled(end):
            await self._news.wait()
        if self._core.failure is not None:
            raise self._core.failure

    async def close(self) -> None:
        """Flush, and end. Raises `ProducerFailed`. If it is cancelled meanwhile, it does not wait for the server any more."""
        try:
            await self.flush()
        except asyncio.CancelledError:
            await self.abandon()
            raise
        finally:
            await self._end()

    async def abandon(self) -> None:
        """End now. What has no receipt yet may be stored or not."""
        self._core.abandon("it was abandoned")
        self._settle()
        await self._end()

    async def _end(self) -> None:
        self._core.close()
        self._tell()
        if self._core.failure is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _work(self) -> None:
        """Whatever ends it but its end is told to those who wait: a client that was closed before its producer, for one."""
        try:
            await self._send_all()
        except Exception as error:  # noqa: BLE001 (the failure is the producer's: it is raised where records are given to it)
            self._core.abandon(f"it cannot go on: {error}")
            self._settle()

    async def _send_all(self) -> None:
        """One request after the other."""
        while True:
            while (request := self._core.due(now := time.monotonic())) is None:
                if self._core.is_over:
                    return
                at = self._core.wake_at(now)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if at is None else max(at - now, 0.0)):
                        await self._news.wait()
            what = await self._wire.send(request)
            self._core.heard(request, heard(what))
            self._settle()

    def _settle(self) -> None:
        for end in self._core.take_settled():
            assert isinstance(end.receipt, AsyncReceipt)
            end.receipt.settle(end.result)
        self._tell()
