"""The blocking worker: it yields jobs one by one, and a thread renews the lease while a job is
handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polynya.client.blocking.generated.driver import Driver
from polynya.client.handles import Membership
from polynya.client.leases import Job
from polynya.client.live.feeds import Feed
from polynya.client.workers import Worker

if TYPE_CHECKING:
    from polynya.client.blocking.generated.wire import Wire


class Work(Membership, Iterator[Job]):
    """Iterate over it for jobs. `with` creates the group before the block starts, and releases the
    lease at its end; an exception in the block gives the job in hand back."""

    def __init__(self, wire: Wire, worker: Worker, *, wait: bool) -> None:
        super().__init__(worker)
        self._wire = wire
        self._feed = Feed(wire, worker.work(wait=wait))
        self._ended = threading.Event()
        self._beater: threading.Thread | None = None

    def __enter__(self) -> Work:
        Driver(self._wire).run(self._worker.join())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close(error)

    def __next__(self) -> Job:
        if self._beater is None and not self._ended.is_set():
            self._beater = threading.Thread(
                target=self._beat, args=(self._worker.beat_seconds,), name="lease", daemon=True
            )
            self._beater.start()
        try:
            return next(self._feed)  # type: ignore[no-any-return]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Acknowledge the handled records and release the lease at once."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        """Close. After an error in the block the job in hand is given back."""
        self._ended.set()
        self._feed.close()
        if self._beater is not None:
            self._beater.join()
        if (closing_request := self._worker.closing_request(error)) is not None:
            self._wire.send(closing_request)  # best effort: the lease expires otherwise
        if self._beater is not None and (leave := self._worker.leave()) is not None:
            self._beater = None
            self._wire.send(leave)

    def _beat(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            for request, take in self._worker.beats(time.monotonic()):
                take(self._wire.send(request))
