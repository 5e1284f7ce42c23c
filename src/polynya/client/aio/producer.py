"""The asyncio producer: one task per request in flight."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from polynya.client.aio.driver import AsyncDriver
from polynya.client.clock import effect_result
from polynya.client.errors import ProducerFailed
from polynya.client.handles import ProducerProgress
from polynya.client.messages import Operation, Retry
from polynya.client.producing import Batching, Names, ProducerCore
from polynya.client.values import Appended, Json

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncWire


class AsyncReceipt:
    """The pending result of a batch: await it for the `Appended` result. Awaiting is optional.
    Cancelling one waiter leaves the others unaffected."""

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
            # marks the exception as retrieved: without an awaited receipt, `flush` raises it
            self._future.exception()

    def __await__(self) -> Generator[Any, None, Appended]:
        return asyncio.shield(self._future).__await__()


class OpeningProducer:
    """A producer that still has to fetch its epoch: enter it with `async with`, or await it, once.
    It sends no request before that."""

    def __init__(
        self,
        wire: AsyncWire,
        names: Callable[[], Operation[Names]],
        batching: Batching,
        retry: Retry,
    ) -> None:
        self._wire = wire
        self._names = names
        self._batching = batching
        self._retry = retry
        self._producer: AsyncProducer | None = None

    def __await__(self) -> Generator[Any, Any, AsyncProducer]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncProducer:
        self._producer = await self._opened()
        return self._producer

    async def _opened(self) -> AsyncProducer:
        names = await AsyncDriver(self._wire).run(self._names())
        return AsyncProducer(self._wire, names, self._batching, self._retry)

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        assert self._producer is not None, "the append was entered"
        await self._producer.__aexit__(kind, *rest)


class AsyncProducer(ProducerProgress):
    """An idempotent producer: it stores each record once, in the order of the `append` calls.

    Use it in an `async with`: the end of the block waits until all records are durable, and raises
    `ProducerFailed` if one cannot be."""

    def __init__(self, wire: AsyncWire, names: Names, batching: Batching, retry: Retry) -> None:
        super().__init__(ProducerCore(names, batching, retry))
        self._wire = wire
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._tasks = [
            loop.create_task(self._work(), name=f"producer-{number}")
            for number in range(batching.in_flight)
        ]

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # on cancellation, do not wait for the server
        if kind is not None and not issubclass(kind, Exception):
            await self.abandon()
        else:
            await self.close()

    async def append(self, record: Json) -> AsyncReceipt:
        """Buffer one record for the next batch, and return the batch's receipt.

        Waits while the buffer is full. Await the receipt to wait until the record is durable;
        awaiting is optional. Raises TypeError or ValueError for an invalid record, `ProducerFailed`
        once the producer has failed."""
        data = self._core.encode(record)
        while not self._core.has_room(len(data)):
            await self._news.wait()
        batch = self._core.offer(data, time.monotonic())
        began = batch.receipt is None
        if began:
            batch.receipt = AsyncReceipt(self._loop.create_future())
        if began or self._core.batches.is_full:
            self._notify()
            await asyncio.sleep(0)  # let the sender tasks run during a tight loop of appends
        assert isinstance(batch.receipt, AsyncReceipt)
        return batch.receipt

    async def close_stream(self, *records: Json) -> Appended:
        """Close the stream after all appended records and the given last ones, which are stored
        atomically.

        Waits until the stream is closed. Calling it again without records returns the same result.
        Raises `ProducerFailed`, and TypeError or ValueError for an invalid record."""
        batch = self._core.close_stream([self._core.encode(record) for record in records])
        if batch.receipt is None:
            batch.receipt = AsyncReceipt(self._loop.create_future())
        self._notify()
        assert isinstance(batch.receipt, AsyncReceipt)
        return await batch.receipt

    async def flush(self) -> None:
        """Wait until all appended records are durable. Raises `ProducerFailed`."""
        end = self._core.batches.flush()
        self._notify()
        while not self._core.batches.is_settled(end):
            await self._news.wait()
        if self._core.receipts.failure is not None:
            raise self._core.receipts.failure

    async def close(self) -> None:
        """Flush and stop. Raises `ProducerFailed`. On cancellation, stop without waiting for the
        server."""
        try:
            await self.flush()
        except asyncio.CancelledError:
            await self.abandon()
            raise
        finally:
            await self._end()

    async def abandon(self) -> None:
        """Stop immediately. Records without a receipt may or may not be stored."""
        self._core.abandon("the producer was abandoned")
        self._settle()
        await self._end()

    async def _end(self) -> None:
        self._core.close()
        self._notify()
        if self._core.receipts.failure is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _work(self) -> None:
        """Run a sender; an unexpected error, such as a closed client, fails the producer and wakes
        its waiters."""
        try:
            await self._send_all()
        except Exception as error:  # noqa: BLE001 (`append` and `flush` raise the failure)
            self._core.abandon(f"the producer failed: {error}")
            self._settle()

    async def _send_all(self) -> None:
        """Send one request at a time until the producer is done."""
        while True:
            while (request := self._core.due(now := time.monotonic())) is None:
                if self._core.is_over:
                    return
                at = self._core.wake_at(now)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if at is None else max(at - now, 0.0)):
                        await self._news.wait()
            what = await self._wire.send(request)
            self._core.on_result(request, effect_result(what))
            self._settle()

    def _settle(self) -> None:
        for end in self._core.receipts.take():
            assert isinstance(end.receipt, AsyncReceipt)
            end.receipt.settle(end.result)
        self._notify()
