"""Connections to the peer port that have not said who they are: few, for a short while, and no address keeps the others out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

STRANGERS_MAX = 256  # at the same time …
ARRIVALS_MAX = 32  # … and from one address between two ticks: each may cost a handshake
TICKS_MAX = 12  # so long they have, whatever they send


class UnauthenticatedConnection:
    """One of them. `drop` ends its connection, however far that has come."""

    __slots__ = ("address", "drop", "ticks")

    def __init__(self, address: str) -> None:
        self.address = address
        self.drop: Callable[[], object] = _nothing
        self.ticks = 0


class UnauthenticatedConnections:
    """Over the bound the oldest of the address that has most of them goes: whoever belongs here needs milliseconds to say so."""

    def __init__(self) -> None:
        self._there: dict[UnauthenticatedConnection, None] = {}  # the oldest first
        self._arrived: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._there)

    def welcome(self, address: str) -> bool:
        """Whether one more from this address may be looked at before the next tick. Counts it."""
        self._arrived[address] += 1
        return self._arrived[address] <= ARRIVALS_MAX

    def enter(self, address: str) -> tuple[UnauthenticatedConnection, bool]:
        """And whether another had to go for it."""
        full = len(self._there) >= STRANGERS_MAX
        if full:
            ((most, _),) = Counter(stranger.address for stranger in self._there).most_common(1)
            self._end(next(stranger for stranger in self._there if stranger.address == most))
        stranger = UnauthenticatedConnection(address)
        self._there[stranger] = None
        return stranger, full

    def leave(self, stranger: UnauthenticatedConnection) -> None:
        """It is known, or gone. May be called again."""
        self._there.pop(stranger, None)

    def tick(self) -> list[str]:
        """A few times a second. The addresses of those whose time is over; they are dropped."""
        self._arrived.clear()
        late = [stranger for stranger in self._there if stranger.ticks >= TICKS_MAX]
        for stranger in self._there:
            stranger.ticks += 1
        for stranger in late:
            self._end(stranger)
        return [stranger.address for stranger in late]

    def _end(self, stranger: UnauthenticatedConnection) -> None:
        del self._there[stranger]
        stranger.drop()


def _nothing() -> None:
    pass
