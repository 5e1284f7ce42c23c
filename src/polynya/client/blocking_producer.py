"""The blocking shell of a producer: a thread for each request that may be under way."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from polynya.client.clock import heard
from polynya.client.handles import ProducerProgress
from polynya.client.messages import Retry
from polynya.client.producing import Batching, Names, ProducerCore
from polynya.client.values import Appended, Json

if TYPE_CHECKING:
    from polynya.client.http import Wire

Receipt = Future[Appended]


class Producer(ProducerProgress):
    """Appends from any thread, in the order in which they came, each stored once. Use it in a `with`: the end of the block waits until
    everything is durable, and raises `ProducerFailed` if something cannot be."""

    def __init__(self, wire: Wire, names: Names, batching: Batching, retry: Retry) -> None:
        super().__init__(ProducerCore(names, batching, retry))
        self._wire = wire
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"producer-{number}", daemon=True) for number in range(batching.in_flight)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):  # an interrupt does not wait for the server
            self.abandon()
        else:
            self.close()

    def append(self, record: Json) -> Receipt:
        """Take one record; it leaves soon, in a batch. Waits while the buffer is full. The receipt's `result()` waits until the record is
        durable; nobody has to ask it. Raises TypeError and ValueError for what is no record, `ProducerFailed` when the producer has failed."""
        data = self._core.encode(record)
        with self._changed:
            while not self._core.has_room(len(data)):
                self._changed.wait()
            batch = self._core.offer(data, time.monotonic())
            began = batch.receipt is None
            if began:
                batch.receipt = Future()
                batch.receipt.set_running_or_notify_cancel()  # a batch is not one caller's to cancel
            if began or self._core.is_full:
                self._changed.notify_all()
        assert isinstance(batch.receipt, Future)
        return batch.receipt

    def close_stream(self, *records: Json) -> Appended:
        """Close the stream: after all that was appended, and with the given last records, all or none. Wait until it is done. Called again
        without records it answers the same. Raises `ProducerFailed`; TypeError and ValueError for what is no record."""
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
        """Wait until all that was appended is durable. Raises `ProducerFailed`."""
        with self._changed:
            end = self._core.flush()
            self._changed.notify_all()
            while not self._core.is_settled(end):
                self._changed.wait()
            if self._core.failure is not None:
                raise self._core.failure

    def close(self) -> None:
        """Flush, and end. Raises `ProducerFailed`. If it is interrupted meanwhile, it does not wait for the server any more."""
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
        """End now. What has no receipt yet may be stored or not."""
        with self._changed:
            self._core.abandon("it was abandoned")
            self._settle()
        self._end(wait=False)

    def _end(self, *, wait: bool = True) -> None:
        with self._changed:
            self._core.close()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        """Whatever ends it but its end is told to those who wait: a client that was closed before its producer, for one."""
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 (the failure is the producer's: it is raised where records are given to it)
            with self._changed:
                self._core.abandon(f"it cannot go on: {error}")
                self._settle()

    def _send_all(self) -> None:
        """One request after the other."""
        while True:
            with self._changed:
                while (request := self._core.due(now := time.monotonic())) is None:
                    if self._core.is_over:
                        return
                    at = self._core.wake_at(now)
                    self._changed.wait(None if at is None else max(at - now, 0.001))
            what = self._wire.send(request)
            with self._changed:
                self._core.heard(request, heard(what))
                self._settle()

    def _settle(self) -> None:
        for end in self._core.take_settled():
            assert isinstance(end.receipt, Future)
            if isinstance(end.result, Appended):
                end.receipt.set_result(end.result)
            else:
                end.receipt.set_exception(end.result)
        self._changed.notify_all()
