"""Cursors that let a CDN collapse live readers (protocol section 10.1). A cursor is the number of
the current 20-second interval."""

from __future__ import annotations

import re

EPOCH_MS = 1_728_432_000_000  # 2024-10-09T00:00:00Z
INTERVAL_MS = 20_000
JITTER_INTERVALS_MAX = 180  # 3600 s

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def current_interval(now_ms: int) -> int:
    return (now_ms - EPOCH_MS) // INTERVAL_MS


def next_cursor(asked: str | None, now_ms: int, random: float) -> int:
    """Return the cursor of the response. A client at or ahead of the clock gets a strictly greater
    one, by a random step (0 <= random < 1). Thus it cannot receive a cached response again."""
    now = current_interval(now_ms)
    if asked is None or not _DIGITS.fullmatch(asked):
        return now
    known = int(asked)
    return now if known < now else known + 1 + int(random * JITTER_INTERVALS_MAX)
