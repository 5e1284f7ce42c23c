"""The clock and the dice of both shells."""

from __future__ import annotations

import random
import time

from polynya.client.messages import Answer, Broken, Heard


def heard(what: Answer | Broken | bytes | None = None) -> Heard:
    """What came of an effect, now."""
    return Heard(time.monotonic(), random.random(), what)  # noqa: S311 (it spreads retries)
