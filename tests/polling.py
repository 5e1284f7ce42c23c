"""Waiting for another process: poll with a deadline, the only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    look: Callable[[], Found | None], *, what: str, seconds: float = 60.0, pause: float = 0.05
) -> Found:
    """The first truthy answer of `look`; AssertionError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for: {what}"
        time.sleep(pause)
