"""The availability of the object store for this core: duration and cause of a failure, for health
and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

import msgspec

from polynya.base.limits import MIB
from polynya.jobs import repeat
from polynya.objectstore import Record, StoreError, WatchedStore, remove_in_passing
from polynya.observability.metrics import Samples

# test write to a store that was full: it must have room for more than a few bytes
FULL_TRY_BYTES = MIB


class StorePatience(msgspec.Struct, frozen=True):
    """The time limits of store health, in seconds.

    `persists`, `failures`: a failure is reported after this time and this many consecutive errors.
    `probe`: delay after a failed write
    until a test write. Appends at their limit thus resume soon, and a store that rejects every
    other write does not count as down.
    `recent`: older read errors are not reported, since reads are not retried automatically."""

    persists: float = 20.0
    failures: int = 3
    probe: float = 0.5
    look: float = 0.25
    recent: float = 60.0


class StoreAccess:
    """The store access of one core. `waits` returns why the store has not been usable since the
    start, or None."""

    def __init__(
        self,
        store: WatchedStore,
        waits: Callable[[], str | None],
        patience: StorePatience | None = None,
    ) -> None:
        self.store = store
        self.patience = patience or StorePatience()
        self._waits = waits
        self._now = asyncio.get_running_loop().time
        self._made = self._now()

    def failing(self) -> float:
        """Return for how many seconds writes have failed, 0.0 below the reporting limit."""
        waiting = self._now() - self._made if self._waits() is not None else 0.0
        seconds = max(waiting, self._lasting(self.store.writes))
        return seconds if seconds >= self.patience.persists else 0.0

    def trouble(self) -> str | None:
        """Return a public message without location names, or None."""
        waits, patience = self._waits(), self.patience
        if waits is not None:
            return waits
        for verb, record in (("written to", self.store.writes), ("read from", self.store.reads)):
            seconds = self._lasting(record)
            if seconds >= patience.persists and record.idle() < patience.recent:
                return f"nothing could be {verb} it for {seconds:.0f} s: {record.reason}"
        return None

    def samples(self) -> Samples:
        return {"polynya_object_store_failing_seconds": round(self.failing(), 3)}

    async def can_write(self) -> bool:
        """Return True if a recent write succeeded, or a test write does."""
        writes = self.store.writes
        if self._waits() is None and (
            writes.failures or self._now() - writes.worked_at > self.patience.probe
        ):
            await self._try()
        return self._waits() is None and not writes.failures

    async def run(self) -> None:
        """Write test objects while writes fail and no other write is due, so that recovery is
        noticed. It does not return."""
        await repeat(self._probe, self.patience.look, at_once=False)

    async def _probe(self) -> None:
        writes = self.store.writes
        if writes.failures and writes.idle() >= self.patience.probe:
            await self._try()

    def _lasting(self, record: Record) -> float:
        return record.failing() if record.failures >= self.patience.failures else 0.0

    async def _try(self) -> None:
        key = f"self-test/{token_hex(16)}"
        try:
            with suppress(StoreError):
                await self.store.put(
                    key, bytes(FULL_TRY_BYTES) if self.store.writes.full else b"self-test"
                )
        except asyncio.CancelledError:
            await remove_in_passing(self.store, key)
            raise
        with suppress(StoreError):
            await self.store.delete([key])
