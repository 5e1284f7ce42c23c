"""Rate limits of principals: one token bucket for requests and one for bytes, on each core for the
whole node.

Every core enforces the full limit and reports its usage to the others a few times a second
(`drain`, `spend`). A client on one connection gets its full limit. One that spreads over all cores
can exceed it by the traffic between two reports.
"""

from __future__ import annotations

BURST_SECONDS = 1.0  # a bucket holds this much time's rate


class Meter:
    """The meter of one principal on one core. `now` is in seconds of a monotonic clock. A rate of 0
    is unlimited."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_bytes",
        "_bytes_rate",
        "_let_bytes",
        "_let_requests",
        "_requests",
        "_requests_rate",
        "connections",
        "elsewhere",
    )

    def __init__(self, requests_per_second: float, bytes_per_second: float, now: float) -> None:
        self._requests_rate, self._bytes_rate = requests_per_second, bytes_per_second
        self._requests = max(1.0, requests_per_second * BURST_SECONDS)
        self._bytes = bytes_per_second * BURST_SECONDS
        self._at = now
        self._let_requests = self._let_bytes = 0  # since the last `drain`
        self.connections = 0  # on this core
        self.elsewhere: dict[int, int] = {}  # core -> its connections

    @property
    def rates(self) -> tuple[float, float]:
        return self._requests_rate, self._bytes_rate

    @property
    def limits_bytes(self) -> bool:
        return self._bytes_rate > 0

    def take(self, now: float, size: int, *, paced: bool = False) -> float:
        """Admit a request of `size` bytes and return 0, or return the seconds to wait. One request
        may overdraw the byte bucket, so that the largest body passes at any rate. `paced`: the
        response itself waits for bytes (`owed`)."""
        self._fill(now)
        wait = 0.0
        if self._requests_rate and self._requests < 1:
            wait = (1 - self._requests) / self._requests_rate
        if self._bytes_rate and self._bytes <= 0 and not paced:
            wait = max(wait, (1 - self._bytes) / self._bytes_rate)
        if wait:
            return wait
        self._requests -= 1
        self._let_requests += 1
        self._bytes -= size
        self._let_bytes += size
        return 0.0

    def admit(self, now: float, size: int, requests: int = 1) -> float:
        """Admit a request of `size` bytes in any case, and return the seconds until the limits
        allow the next one. `requests`: a request of many parts counts as several."""
        self._fill(now)
        self._requests -= requests
        self._let_requests += requests
        self.charge(size)
        wait = 0.0
        if self._requests_rate and self._requests < 0:
            wait = -self._requests / self._requests_rate
        return max(wait, self.owed(now))

    def charge(self, size: int) -> None:
        """Charge the bytes of a response."""
        self._bytes -= size
        self._let_bytes += size

    def owed(self, now: float) -> float:
        """Return the seconds until another byte may be sent, 0 for now."""
        self._fill(now)
        return (
            (1 - self._bytes) / self._bytes_rate if self._bytes_rate and self._bytes <= 0 else 0.0
        )

    def drain(self) -> tuple[int, int]:
        """Return (requests, bytes) admitted since the last call, for the other cores."""
        let = (self._let_requests, self._let_bytes)
        self._let_requests = self._let_bytes = 0
        return let

    def spend(self, requests: int, size: int) -> None:
        """Charge another core's usage. Request debt is bounded, so that a burst elsewhere cannot
        lock a client out for long."""
        self._requests = max(self._requests - requests, -self._requests_rate * BURST_SECONDS)
        self._bytes -= size

    @property
    def connections_everywhere(self) -> int:
        return self.connections + sum(self.elsewhere.values())

    def _fill(self, now: float) -> None:
        passed = now - self._at
        self._at = now
        rate = self._requests_rate
        self._requests = min(max(1.0, rate * BURST_SECONDS), self._requests + passed * rate)
        rate = self._bytes_rate
        self._bytes = min(rate * BURST_SECONDS, self._bytes + passed * rate)
