"""Leases of tables, by which several workers divide the tables among them."""

from __future__ import annotations

import threading
from typing import Protocol

from polynya.base.errors import PolynyaError
from polynya.base.limits import TABLE_LEASE_MS

EXTEND_SECONDS = TABLE_LEASE_MS / 3000  # a lease survives two extensions that fail


class Leased(PolynyaError):
    """Another worker syncs the table, or did so a moment ago."""


class Leases(Protocol):
    """The leases of one worker. A plan for a job takes the table's lease."""

    def extend_leases(self) -> None:
        """Extend all leases. Leases that cannot be extended end in time."""
        ...

    def release_lease(self, name: str, rest_seconds: float) -> None:
        """End the lease of a table, if there is one. Other workers leave the table alone for a
        time."""
        ...

    def release_leases(self) -> None:
        """End all leases, without a pause: this worker stops."""
        ...


class NoLeases:
    """The leases of a driver that syncs tables whether or not others do."""

    def extend_leases(self) -> None: ...

    def release_lease(self, name: str, rest_seconds: float) -> None: ...

    def release_leases(self) -> None: ...


class LeaseKeeper:
    """A context in which a thread extends a worker's leases; at its end they are released."""

    def __init__(self, leases: Leases, seconds: float = EXTEND_SECONDS) -> None:
        self._leases = leases
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._extend, name="leases", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._leases.release_leases()

    def _extend(self) -> None:
        while not self._over.wait(self._seconds):
            self._leases.extend_leases()
