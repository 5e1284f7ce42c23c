"""The blocking shell of a worker: jobs one by one, and a thread that keeps the lease while one is being handled."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polynya.client.lines import Feed, Line
from polynya.client.sharing import BEATS_PER_LEASE, Job, Worker

if TYPE_CHECKING:
    from polynya.client.wires import Wire


class Work(Iterator[Job]):
    """Iterate over it for jobs. Entered with `with`, it makes the group before the block begins, and gives its lease back at the end."""

    def __init__(self, wire: Wire, worker: Worker, *, handle_seconds: float, wait: bool) -> None:
        self._wire = wire
        self._worker = worker
        self._feed = Feed(wire, worker.work(wait=wait))
        self._handle_seconds = handle_seconds
        self._handling_since: float | None = None
        self._ended = threading.Event()
        self._beater: threading.Thread | None = None

    def __enter__(self) -> Work:
        Line(self._wire).run(self._worker.join())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The worker's, as others see it."""
        return self._worker.name

    @property
    def leases_lost(self) -> int:
        """Leases that ran out while their records were being handled."""
        return self._worker.turns_lost

    def __next__(self) -> Job:
        self._handling_since = None
        try:
            job: Job = next(self._feed)
        except BaseException:
            self.close()
            raise
        self._handling_since = time.monotonic()
        if self._beater is None:
            self._beater = threading.Thread(target=self._beat, args=(job.lease.seconds / BEATS_PER_LEASE,), name="lease", daemon=True)
            self._beater.start()
        return job

    def close(self) -> None:
        """Acknowledge what was handled, and let others have the rest at once."""
        self._ended.set()
        self._feed.close()
        if self._beater is not None:
            self._beater.join()
        if (farewell := self._worker.farewell()) is not None:
            self._wire.send(farewell)  # if it gets lost, the lease runs out

    def _beat(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            lease, since = self._worker.lease, self._handling_since
            if lease is not None and since is not None and time.monotonic() - since < self._handle_seconds:
                lease.beaten(self._wire.send(lease.beat()))


def worker_name() -> str:
    """Of this process and machine, and no other worker's."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
