"""The blocking producer: one thread per request in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from polynya.client.blocking.generated.driver import Driver
from polynya.client.clock import effect_result
from polynya.client.handles import ProducerProgress
from polynya.client.messages import Operation, Retry
from polynya.client.producing import Batching, Names, ProducerCore
from polynya.client.values import Appended, Json

if TYPE_CHECKING:
    from polynya.client.blocking.generated.wire import Wire

Receipt = Future[Appended]


def open_producer(
    wire: Wire, names: Callable[[], Operation[Names]], batching: Batching, retry: Retry
) -> Producer:
    """Fetch the identity of a producer and start it."""
    return Producer(wire, Driver(wire).run(names()), batching, retry)


class Producer(ProducerProgress):
    """An idempotent producer: it stores each record once, in the order of the `append` calls.
    Threads may share it.

    Use it in a `with`: the end of the block waits until all records are durable, and raises
    `ProducerFailed` if one cannot be."""

    def __init__(self, wire: Wire, names: Names, batching: Batching, retry: Retry) -> None:
        super().__init__(ProducerCore(names, batching, retry))
        self._wire = wire
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"producer-{number}", daemon=True)
            for number in range(batching.in_flight)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # on an interrupt, do not wait for the server
        if kind is not None and not issubclass(kind, Exception):
            self.abandon()
        else:
            self.close()

    def append(self, record: Json) -> Receipt:
        """Buffer one record for the next batch, and return the batch's receipt.

        Waits while the buffer is full. The receipt's `result()` waits until the record is durable;
        calling it is optional. Raises TypeError or ValueError for an invalid record,
        `ProducerFailed` once the producer has failed."""
        data = self._core.encode(record)
        with self._changed:
            while not self._core.has_room(len(data)):
                self._changed.wait()
            batch = self._core.offer(data, time.monotonic())
            began = batch.receipt is None
            if began:
                batch.receipt = Future()
                # callers share a batch: none may cancel it
                batch.receipt.set_running_or_notify_cancel()
            if began or self._core.batches.is_full:
                self._changed.notify_all()
        assert isinstance(batch.receipt, Future)
        return batch.receipt

    def close_stream(self, *records: Json) -> Appended:
        """Close the stream after all appended records and the given last ones, which are stored
        atomically.

        Waits until the stream is closed. Calling it again without records returns the same result.
        Raises `ProducerFailed`, and TypeError or ValueError for an invalid record."""
        data = [self._core.encode(record) for record in records]
        with self._changed:
            batch = self._core.close_stream(data)
            if batch.receipt is None:
                batch.receipt = Future()
                batch.receipt.set_running_or_notify_cancel()
            self._changed.notify_all()
        assert isinstance(batch.receipt, Future)
        result: Appended = batch.receipt.result()
        return result

    def flush(self) -> None:
        """Wait until all appended records are durable. Raises `ProducerFailed`."""
        with self._changed:
            end = self._core.batches.flush()
            self._changed.notify_all()
            while not self._core.batches.is_settled(end):
                self._changed.wait()
            if self._core.receipts.failure is not None:
                raise self._core.receipts.failure

    def close(self) -> None:
        """Flush and stop. Raises `ProducerFailed`. On an interrupt, stop without waiting for the
        server."""
        try:
            self.flush()
        except KeyboardInterrupt:
            self.abandon()
            raise
        except BaseException:
            self._end()
            raise
        self._end()

    def abandon(self) -> None:
        """Stop immediately. Records without a receipt may or may not be stored."""
        with self._changed:
            self._core.abandon("the producer was abandoned")
            self._settle()
        self._end(wait=False)

    def _end(self, *, wait: bool = True) -> None:
        with self._changed:
            self._core.close()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        """Run a sender; an unexpected error, such as a closed client, fails the producer and wakes
        its waiters."""
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 (`append` and `flush` raise the failure)
            with self._changed:
                self._core.abandon(f"the producer failed: {error}")
                self._settle()

    def _send_all(self) -> None:
        """Send one request at a time until the producer is done."""
        while True:
            with self._changed:
                while (request := self._core.due(now := time.monotonic())) is None:
                    if self._core.is_over:
                        return
                    at = self._core.wake_at(now)
                    self._changed.wait(None if at is None else max(at - now, 0.001))
            what = self._wire.send(request)
            with self._changed:
                self._core.on_result(request, effect_result(what))
                self._settle()

    def _settle(self) -> None:
        for end in self._core.receipts.take():
            assert isinstance(end.receipt, Future)
            if isinstance(end.result, Appended):
                end.receipt.set_result(end.result)
            else:
                end.receipt.set_exception(end.result)
        self._changed.notify_all()
