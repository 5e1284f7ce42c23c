"""SIGTERM and SIGINT to a driver. Every step of a job can be repeated, so it stops anywhere; but once a job's commit is asked for, it is
given a moment to reach both formats, so that Delta is not left a job behind Iceberg."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FINISH_SECONDS = 10.0  # well within the time after which a supervisor kills


class Stopped(BaseException):
    """A signal came. The message says what was left undone, if it was in the middle of a pair of commits."""


class _Stopping:
    """Of this process; signals are the main thread's."""

    def __init__(self) -> None:
        self.unfinished = ""  # what is left undone if it stopped now
        self.asked = False  # while that was so

    def on_signal(self, number: int, frame: Any) -> None:
        """The first one in a pair of commits waits for its end, for so long; the second one does not."""
        if not self.unfinished or self.asked:
            raise Stopped(self.unfinished)
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, FINISH_SECONDS)


_stopping = _Stopping()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped; only in the main thread, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.signal(number, _stopping.on_signal) for number in known}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def finish_first(unfinished: str) -> Iterator[None]:
    """What a signal lets end, in bounded time, before it raises Stopped; `unfinished` is its message when the time was not enough."""
    left = _stopping.unfinished = unfinished
    try:
        yield
        left = ""
    finally:
        _stopping.unfinished = ""
        if _stopping.asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _stopping.asked = False
            raise Stopped(left)
