"""Inbound connections before their handshake. They are few and short-lived, and no address can
block the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

UNAUTHENTICATED_MAX = 256  # at the same time …
ARRIVALS_MAX = 32  # … and from one address between two ticks, because each may cost a TLS handshake
TICKS_MAX = 12  # time limit of the handshake, in ticks


class UnauthenticatedConnection:
    """A connection before its handshake. `drop` closes it at any stage."""

    __slots__ = ("address", "drop", "ticks")

    def __init__(self, address: str) -> None:
        self.address = address
        self.drop: Callable[[], object] = _nothing
        self.ticks = 0


class UnauthenticatedConnections:
    """The connections before their handshake. Above the bound, the oldest one of the most frequent
    address is dropped. A legitimate node needs only milliseconds."""

    def __init__(self) -> None:
        self._there: dict[UnauthenticatedConnection, None] = {}  # oldest first
        self._arrived: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._there)

    def welcome(self, address: str) -> bool:
        """Count a connection from this address. Return whether it is accepted before the next
        tick."""
        self._arrived[address] += 1
        return self._arrived[address] <= ARRIVALS_MAX

    def enter(self, address: str) -> tuple[UnauthenticatedConnection, bool]:
        """Add a connection. Also return whether another one was dropped for it."""
        full = len(self._there) >= UNAUTHENTICATED_MAX
        if full:
            ((most, _),) = Counter(pending.address for pending in self._there).most_common(1)
            self._end(next(pending for pending in self._there if pending.address == most))
        pending = UnauthenticatedConnection(address)
        self._there[pending] = None
        return pending, full

    def leave(self, pending: UnauthenticatedConnection) -> None:
        """Remove a connection that completed the handshake or ended. Idempotent."""
        self._there.pop(pending, None)

    def tick(self) -> list[str]:
        """Drop the connections that exceeded the time limit and return their addresses. Called a
        few times a second."""
        self._arrived.clear()
        late = [pending for pending in self._there if pending.ticks >= TICKS_MAX]
        for pending in self._there:
            pending.ticks += 1
        for pending in late:
            self._end(pending)
        return [pending.address for pending in late]

    def _end(self, pending: UnauthenticatedConnection) -> None:
        del self._there[pending]
        pending.drop()


def _nothing() -> None:
    pass
