"""The clock, the random numbers and the random names of both clients."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time

from polynya.client.messages import Broken, EffectResult, HttpResponse


def effect_result(what: HttpResponse | Broken | bytes | None = None) -> EffectResult:
    """Wrap the result of an effect with the current time and a random number."""
    return EffectResult(time.monotonic(), random.random(), what)  # noqa: S311 (retry jitter)


def drawn_producer_id() -> str:
    """Return a random id for an unnamed producer."""
    return f"py-{secrets.token_hex(8)}"


def worker_name() -> str:
    """Return a unique worker name: host, process id and a random suffix."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
