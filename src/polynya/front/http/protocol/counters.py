"""Counters of the front: plain numbers, read at scrape time."""

from __future__ import annotations

from collections import defaultdict


class HttpCounters:
    __slots__ = (
        "appends",
        "bytes_in",
        "connections_opened",
        "connections_refused",
        "live_cut",
        "live_opened",
        "long_polls",
        "stalled",
        "statuses",
        "timeouts",
    )

    def __init__(self) -> None:
        self.appends = 0  # stream POSTs, successful or not
        self.bytes_in = 0  # of append bodies
        self.connections_opened = 0
        self.connections_refused = 0
        self.live_opened = 0  # SSE subscriptions
        self.live_cut = 0  # of those, ended because the reader was slow
        self.long_polls = 0
        self.stalled = 0  # connections closed because the client stopped reading
        self.timeouts = 0
        self.statuses: dict[int, int] = defaultdict(int)

    def refuse_handshake(self) -> None:
        """Count a handshake that was dropped for a newer one."""
        self.connections_refused += 1
