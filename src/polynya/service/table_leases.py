"""Leases of tables: workers divide the tables among them, so that two do not run the same job.

A lease only saves work. Jobs are exactly once without it: a worker that lost its lease finishes its
job or loses the commit. Leases are settings of the meta group, so all nodes see the same.
"""

from __future__ import annotations

import asyncio

import msgspec

from polynya.base.limits import TABLE_LEASE_MS
from polynya.service.node_service import NodeService
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code

SCOPE = "table-leases"  # in the meta group
ATTEMPTS = 8  # optimistic retries against concurrent changes
KEPT_MS = 3_600_000  # a lease that ended longer ago is forgotten


class Lease(msgspec.Struct, frozen=True):
    """The last worker of a table. It has the lease until `until_ms`, or until it releases it; the
    table then rests until `rested_ms`."""

    worker: str
    until_ms: int
    rested_ms: int = 0


def may_take(lease: Lease | None, worker: str, now_ms: int) -> bool:
    """Report whether a worker may take a table: no other worker has it, and it does not rest."""
    if lease is None:
        return True
    own = lease.worker == worker and now_ms < lease.until_ms
    return own or (lease.until_ms <= now_ms and lease.rested_ms <= now_ms)


class TableLeases:
    """The leases of all tables, as one core sees them."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._changing = asyncio.Lock()  # changes of this core do not conflict with each other

    async def is_free(self, table: int, worker: str) -> bool:
        """Report whether the worker may take the table now."""
        leases, _ = await self._known()
        return may_take(leases.get(table), worker, self._service.now_ms())

    async def take(self, table: int, worker: str) -> bool:
        """Take the table's lease, or extend it. Return False if the worker may not."""
        async with self._changing:
            for _ in range(ATTEMPTS):
                leases, version = await self._known()
                now_ms = self._service.now_ms()
                if not may_take(leases.get(table), worker, now_ms):
                    return False
                if await self._put(leases, version, table, Lease(worker, now_ms + TABLE_LEASE_MS)):
                    return True
        return False

    async def extend(self, table: int, worker: str) -> bool:
        """Extend the lease. Return False if the worker does not have it."""
        leases, _ = await self._known()
        lease = leases.get(table)
        if lease is None or lease.worker != worker or lease.until_ms <= self._service.now_ms():
            return False
        return await self.take(table, worker)

    async def release(self, table: int, worker: str, rest_ms: int) -> None:
        """End the worker's lease. The table rests: no worker takes it before."""
        async with self._changing:
            for _ in range(ATTEMPTS):
                leases, version = await self._known()
                lease, now_ms = leases.get(table), self._service.now_ms()
                if lease is None or lease.worker != worker or lease.until_ms <= now_ms:
                    return
                if await self._put(leases, version, table, Lease(worker, now_ms, now_ms + rest_ms)):
                    return

    async def _known(self) -> tuple[dict[int, Lease], int]:
        meta = await self._service.meta_group.entries(SCOPE)
        leases = {
            int(key): msgspec.json.decode(value, type=Lease)
            for key, value in values_of(meta, SCOPE).items()
        }
        return leases, version_of(meta, SCOPE)

    async def _put(self, leases: dict[int, Lease], version: int, table: int, lease: Lease) -> bool:
        """Change one lease, and forget those that ended long ago. Return False after another
        change."""
        long_ago = self._service.now_ms() - KEPT_MS
        changes: list[tuple[str, bytes | None]] = [
            (str(key), None)
            for key, old in leases.items()
            if key != table and max(old.until_ms, old.rested_ms) < long_ago
        ]
        changes.append((str(table), msgspec.json.encode(lease)))
        reply = await self._service.meta_group.call(MetaChange(SCOPE, version, changes))
        return reply.code == Code.OK
