"""The clock and the dice of both shells, and the names that they draw."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time

from polynya.client.messages import Broken, Heard, HttpResponse


def heard(what: HttpResponse | Broken | bytes | None = None) -> Heard:
    """What came of an effect, now."""
    return Heard(time.monotonic(), random.random(), what)  # noqa: S311 (it spreads retries)


def drawn_producer_id() -> str:
    """For a producer without a name of its own."""
    return f"py-{secrets.token_hex(8)}"


def worker_name() -> str:
    """Of this process and machine, and no other worker's."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
