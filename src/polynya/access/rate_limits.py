"""How much of its limits a principal has left: token buckets, one of requests and one of bytes, on each core for the whole node.

Every core enforces the full limit and tells the others a few times a second what it has let through (`drain`, `spend`), so that a client
on one connection gets all of its limit, and one that spreads over all cores overdraws by what passes between two reports at most.
"""

from __future__ import annotations

BURST_SECONDS = 1.0  # a bucket holds what so much time brings


class Meter:
    """Of one principal on one core. `now` is in seconds of a monotonic clock. A rate of 0 is no limit."""

    __slots__ = (
        "__weakref__", "_at", "_bytes", "_bytes_rate", "_let_bytes", "_let_requests", "_requests", "_requests_rate", "connections", "elsewhere"
    )  # fmt: skip

    def __init__(self, requests_per_second: float, bytes_per_second: float, now: float) -> None:
        self._requests_rate, self._bytes_rate = requests_per_second, bytes_per_second
        self._requests = max(1.0, requests_per_second * BURST_SECONDS)
        self._bytes = bytes_per_second * BURST_SECONDS
        self._at = now
        self._let_requests = self._let_bytes = 0  # since the last `drain`
        self.connections = 0  # of this core
        self.elsewhere: dict[int, int] = {}  # core -> connections there

    @property
    def rates(self) -> tuple[float, float]:
        return self._requests_rate, self._bytes_rate

    @property
    def limits_bytes(self) -> bool:
        return self._bytes_rate > 0

    def take(self, now: float, size: int, *, paced: bool = False) -> float:
        """Let a request of `size` bytes through and return 0, or the seconds until one may be. The bucket of bytes may be overdrawn by
        one request: the largest body must get through whatever the rate is. `paced`: its answer waits for the bytes itself (`owed`)."""
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

    def charge(self, size: int) -> None:
        """Bytes of an answer."""
        self._bytes -= size
        self._let_bytes += size

    def owed(self, now: float) -> float:
        """Seconds until a byte more may be sent; 0 when it may be now."""
        self._fill(now)
        return (1 - self._bytes) / self._bytes_rate if self._bytes_rate and self._bytes <= 0 else 0.0

    def drain(self) -> tuple[int, int]:
        """(requests, bytes) let through since the last call, to be told to the other cores."""
        let = (self._let_requests, self._let_bytes)
        self._let_requests = self._let_bytes = 0
        return let

    def spend(self, requests: int, size: int) -> None:
        """What another core has let through. Debt is bounded, so that a burst elsewhere cannot lock a client out for long."""
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
