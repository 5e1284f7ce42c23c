"""A memory budget for responses that clients have not read: an equal share for each caller, and a
reserve of small pages.

A caller is a token, or an address for requests without one. A page that would exceed the caller's
share is cut to the rest of the share. Once the share is used up, pages are small and count against
the reserve. So a reader makes progress even beside stalled readers at its own address. A connection
counts while its transport holds more than its high-water mark (64 KiB).
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Protocol

from polynya.access import Principal
from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    RAW_STEP_BYTES,
    RESPONSE_BYTES_PER_CORE,
    RESPONSE_RESERVE_BYTES_PER_CORE,
)

# the shortest raw page; also the limit for whole records, unless the first record is larger
SMALL_PAGE_BYTES = RAW_STEP_BYTES
# new callers shrink the shares while others still hold larger ones: the limit of all shares
# together, as a multiple of the budget
_TOTAL_SHARES = 2
_HOST_BITS = 64  # of an IPv6 address: a host may use any address of its /64


class ResponseMemoryFull(PolynyaError):
    """Neither the caller's share nor the reserve has room for another page."""


class Client(Protocol):
    """A connection whose client may leave responses unread."""

    principal: Principal | None
    uses_reserve: bool  # the page being sent counts against the reserve

    @property
    def remote(self) -> str: ...

    @property
    def unread_bytes(self) -> int: ...


class _Caller:
    """The bytes held by the connections of one caller, except those counted against the reserve."""

    __slots__ = ("bytes", "connections", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.bytes = self.connections = 0


class _Unread:
    """The bytes held by one connection, as last measured. `caller` is None if they count against
    the reserve."""

    __slots__ = ("bytes", "caller")

    def __init__(self, caller: _Caller | None) -> None:
        self.caller = caller
        self.bytes = 0


class ResponseMemory:
    """The response memory of one front. The totals are updated when connections stall, drain and
    are swept, so a request reads three numbers."""

    def __init__(self) -> None:
        self.unread: dict[Client, _Unread] = {}  # connections whose clients read slowly
        self.reserve_bytes = 0  # small pages beyond their callers' shares
        self._total = 0  # all other bytes
        self._callers: dict[str, _Caller] = {}

    def allow(self, connection: Client, wanted: int) -> int:
        """Return the size limit of the connection's next page: at most `wanted` bytes, though one
        record may exceed it.

        Raises ResponseMemoryFull."""
        key = _key_of(connection)
        caller = self._callers.get(key)
        share = RESPONSE_BYTES_PER_CORE // (len(self._callers) + (caller is None))
        left = share - (0 if caller is None else caller.bytes)
        left = min(left, _TOTAL_SHARES * RESPONSE_BYTES_PER_CORE - self._total)
        if left >= min(wanted, SMALL_PAGE_BYTES):
            return min(wanted, left)
        if self.reserve_bytes >= RESPONSE_RESERVE_BYTES_PER_CORE:
            raise ResponseMemoryFull("unread responses use all of their memory limit")
        connection.uses_reserve = True
        return min(wanted, SMALL_PAGE_BYTES)

    def stalled(self, connection: Client) -> None:
        """Count a connection whose transport is above its high-water mark."""
        if connection not in self.unread:
            caller = None if connection.uses_reserve else self._enter(_key_of(connection))
            self.unread[connection] = _Unread(caller)
        self._measure(connection, self.unread[connection])

    def measure(self) -> None:
        """Measure all counted connections. Call this every other second."""
        for connection, found in self.unread.items():
            self._measure(connection, found)

    def drained(self, connection: Client) -> None:
        """Stop counting a connection that has drained or closed."""
        found = self.unread.pop(connection, None)
        if found is None:
            return
        self._add(found.caller, -found.bytes)
        if found.caller is not None:
            found.caller.connections -= 1
            if not found.caller.connections:
                del self._callers[found.caller.key]

    def _enter(self, key: str) -> _Caller:
        caller = self._callers.setdefault(key, _Caller(key))
        caller.connections += 1
        return caller

    def _measure(self, connection: Client, found: _Unread) -> None:
        size = connection.unread_bytes
        self._add(found.caller, size - found.bytes)
        found.bytes = size

    def _add(self, caller: _Caller | None, size: int) -> None:
        if caller is None:
            self.reserve_bytes += size
        else:
            caller.bytes += size
            self._total += size


def _key_of(connection: Client) -> str:
    """Return the token's id, else the network of the address."""
    principal = connection.principal
    if principal is not None:
        return f"token {principal.id}"
    return f"address {network_of(connection.remote)}"


def network_of(address: str) -> str:
    """Return the part of an address that one host cannot vary: the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    found = ip_address(address)
    if not isinstance(found, IPv6Address) or found.ipv4_mapped is not None:
        return address
    return str(IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS))
