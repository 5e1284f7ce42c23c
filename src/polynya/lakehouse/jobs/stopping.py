"""Handle SIGTERM and SIGINT in a driver.

Every step of a job is idempotent, so a driver may stop anywhere. But a job whose commit was
requested gets a short time to reach both formats. Otherwise Delta would lag a job behind Iceberg.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FINISH_SECONDS = 10.0  # less than the time after which a supervisor kills


class Stopped(BaseException):
    """A signal arrived. The message names the unfinished work if it arrived between a pair of
    commits."""


class _Stopping:
    """The stop state of this process; only the main thread handles signals."""

    def __init__(self) -> None:
        self.unfinished = ""  # work left unfinished by stopping now
        self.asked = False  # a signal arrived while work was unfinished

    def on_signal(self, number: int, frame: Any) -> None:
        """Stop now, or on the first signal within a pair of commits wait up to FINISH_SECONDS. A
        second signal stops at once."""
        if not self.unfinished or self.asked:
            raise Stopped(self.unfinished)
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, FINISH_SECONDS)


_stopping = _Stopping()


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise Stopped on SIGTERM and SIGINT. Has no effect outside the main thread."""
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
    """Let the body finish, for a bounded time, before a signal raises Stopped. `unfinished` is the
    message if time runs out."""
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
