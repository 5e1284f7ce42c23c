"""Handle SIGTERM and SIGINT in a driver.

Every step of a job is idempotent, so a driver may stop anywhere. But jobs whose commits were
requested get a short time to reach both formats. Otherwise Delta would lag a job behind Iceberg.
Signals arrive in the main thread; jobs may run in others.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPED = "stop requested; the next run repeats unfinished work"
FINISH_SECONDS = 10.0  # less than the time after which a supervisor kills
_NOW = 0.001  # of a timer: the shortest that is not off


class Stopped(BaseException):
    """A signal arrived. The message names the unfinished work if it arrived between a pair of
    commits."""


class _Stopping:
    """The stop state of this process; only the main thread handles signals."""

    def __init__(self) -> None:
        self._unfinished: dict[object, str] = {}  # work left unfinished by stopping now
        self.asked = False  # a signal arrived while work was unfinished
        self.over = False  # Stopped was raised: other threads begin no pair of commits

    @property
    def unfinished(self) -> str:
        """Return the unfinished work in words."""
        return "; ".join(list(self._unfinished.values()))

    def on_signal(self, number: int, frame: Any) -> None:
        """Stop now, or on the first signal within a pair of commits wait up to FINISH_SECONDS. A
        second signal stops at once."""
        if not self._unfinished or self.asked:
            self.over = True
            raise Stopped(self.unfinished)
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, FINISH_SECONDS)

    def begin(self, work: object, description: str) -> None:
        """Note work that should be finished. Raises Stopped if a signal arrived before."""
        if self.asked or (self.over and not _is_main()):
            raise Stopped
        self._unfinished[work] = description

    def end(self, work: object, left: str) -> None:
        """Note the end of the work. The last one after a signal stops the driver; `left` tells what
        is still to be done of it."""
        del self._unfinished[work]
        if not self.asked:
            return
        if _is_main():
            self.reset()
            self.over = True
            raise Stopped(left)
        if not self._unfinished:
            signal.setitimer(signal.ITIMER_REAL, _NOW)  # the main thread stops

    def reset(self) -> None:
        if self.asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.asked = False


_stopping = _Stopping()


def begin_again() -> None:
    """Begin the work of a driver: the stop of an earlier one in this process is over."""
    _stopping.over = False


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise Stopped on SIGTERM and SIGINT. Has no effect outside the main thread."""
    if not _is_main():
        yield
        return
    begin_again()
    known = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.signal(number, _stopping.on_signal) for number in known}
    try:
        yield
    finally:
        _stopping.reset()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def finish_first(unfinished: str) -> Iterator[None]:
    """Let the body finish, for a bounded time, before a signal raises Stopped. `unfinished` is the
    message if time runs out."""
    work, left = object(), unfinished
    _stopping.begin(work, unfinished)
    try:
        yield
        left = ""
    finally:
        _stopping.end(work, left)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
