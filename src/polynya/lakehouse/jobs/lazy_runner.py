"""A runner that starts with the first job, and is shared by tables that are synced side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from polynya.lakehouse.jobs.plan import Job
from polynya.lakehouse.jobs.results import Asked, Derived, Runner
from polynya.lakehouse.jobs.stopping import Stopped
from polynya.lakehouse.jobs.task import TaskResult

RunnerFactory = Callable[[], Runner]


class LazyRunner:
    """Start a runner only when the first job needs one, because a Spark session takes seconds to
    start."""

    def __init__(self, factory: RunnerFactory) -> None:
        self._factory = factory
        self._runner: Runner | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.fault: Exception | None = None  # why it did not start in this round

    @property
    def cores(self) -> int:
        return self._started().cores

    def run(self, job: Job, key: str) -> list[TaskResult]:
        with self._in_use() as runner:
            return runner.run(job, key)

    def derive(
        self, job: Job, key: str, asked: Asked, shaped: Callable[[pa.Schema], tuple[Job, str]]
    ) -> Derived:
        with self._in_use() as runner:
            return runner.derive(job, key, asked, shaped)

    def begin_round(self) -> None:
        """Let a runner that did not start be started again."""
        self.fault = None

    def discard_broken(self) -> None:
        """Close the runner after a fault of its own, unless it tells that it still works: other
        tables may be using it. The next job starts another."""
        runner = self._runner
        works = getattr(runner, "works", None)
        if runner is None or (works is not None and works()):
            return
        with self._lock:
            if self._runner is runner:
                self._runner = None
                _close(runner)

    def close(self) -> None:
        """Close the runner for good. It raises Stopped in threads that use it."""
        self._closed = True
        runner, self._runner = self._runner, None
        if runner is not None:
            _close(runner)

    @contextmanager
    def _in_use(self) -> Iterator[Runner]:
        """Return the runner for a job. A job that fails because the driver stops has no fault."""
        try:
            yield self._started()
        except Exception:
            if self._closed:
                raise Stopped from None
            raise

    def _started(self) -> Runner:
        """Start the runner, once in a round. Raises why it did not start."""
        with self._lock:
            if self._closed:
                raise Stopped
            if self.fault is not None:
                raise self.fault
            try:
                runner = self._runner = self._runner or self._factory()
            except Exception as fault:
                self.fault = fault
                raise
            if self._closed:  # while it started
                self._runner = None
                _close(runner)
                raise Stopped
            return runner


def _close(runner: Runner) -> None:
    close = getattr(runner, "close", None)
    if close is not None:
        close()
