"""Connections that have not authenticated: a part of those that a front may have.

Beyond that part the oldest one of the network that has the most is dropped: a client authenticates
within milliseconds. So strangers cannot keep out the callers that a node knows.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from polynya.front.common.response_memory import network_of

UNAUTHENTICATED_PART = 4  # of the connections: a quarter, the rest is a reserve for known callers
AUTHENTICATION_SECONDS = 30  # without authentication, where it is needed
_T = TypeVar("_T")


class Unauthenticated(Generic[_T]):
    """The connections of one front that have not authenticated, by the network of their
    address."""

    def __init__(self, connections_max: int) -> None:
        self._most = max(1, connections_max // UNAUTHENTICATED_PART)
        self._networks: dict[_T, str] = {}
        self._oldest_first: dict[str, dict[_T, None]] = {}

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, connection: _T, address: str, *, is_full: bool) -> _T | None:
        """Add a connection, and return one that is to be dropped for it, if there are too many.
        `is_full`: the front has as many connections as it may have."""
        dropped = None
        if self._networks and (is_full or len(self._networks) >= self._most):
            network = max(self._oldest_first.values(), key=len)
            dropped = next(iter(network))
            self.remove(dropped)
        network_name = network_of(address)
        self._networks[connection] = network_name
        self._oldest_first.setdefault(network_name, {})[connection] = None
        return dropped

    def remove(self, connection: _T) -> None:
        """Remove a connection that has authenticated or ended."""
        name = self._networks.pop(connection, None)
        if name is None:
            return
        network = self._oldest_first[name]
        del network[connection]
        if not network:
            del self._oldest_first[name]
