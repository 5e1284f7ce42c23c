"""Whether this core can use the object store: for how long it cannot, and why, as health and metrics tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

import msgspec

from polynya.base.limits import MIB
from polynya.objectstore import Record, StoreError, WatchedStore, remove_in_passing
from polynya.observability.metrics import Samples

FULL_TRY_BYTES = MIB  # what is written to a store that was full: it must find more room than a few bytes


class StorePatience(msgspec.Struct, frozen=True):
    """Seconds. `persists`: what has failed for so long, and `failures` times in a row, is told. `probe`: so long after the last write that failed
    another is tried. Appends at their bound then resume soon after the store does, and a store that refuses every other write is not taken for
    one that refuses all. `recent`: what failed longer ago says nothing of now; only reads are not tried again by themselves."""

    persists: float = 20.0
    failures: int = 3
    probe: float = 0.5
    look: float = 0.25
    recent: float = 60.0


class StoreAccess:
    """Of one core. `waits`: why the store is not in use since the start, if it is not."""

    def __init__(self, store: WatchedStore, waits: Callable[[], str | None], patience: StorePatience | None = None) -> None:
        self.store = store
        self.patience = patience or StorePatience()
        self._waits = waits
        self._now = asyncio.get_running_loop().time
        self._made = self._now()

    def failing(self) -> float:
        """For how many seconds nothing can be written; 0.0 until that has lasted."""
        waiting = self._now() - self._made if self._waits() is not None else 0.0
        seconds = max(waiting, self._lasting(self.store.writes))
        return seconds if seconds >= self.patience.persists else 0.0

    def trouble(self) -> str | None:
        """For people, and without names of places: anybody may ask."""
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
        """Now: a write that worked lately counts, else one is tried."""
        writes = self.store.writes
        if self._waits() is None and (writes.failures or self._now() - writes.worked_at > self.patience.probe):
            await self._try()
        return self._waits() is None and not writes.failures

    async def run(self) -> None:
        """For ever: while writes fail and nothing is there to be written, something is, so that their end is noticed."""
        while True:
            await asyncio.sleep(self.patience.look)
            writes = self.store.writes
            if writes.failures and writes.idle() >= self.patience.probe:
                await self._try()

    def _lasting(self, record: Record) -> float:
        return record.failing() if record.failures >= self.patience.failures else 0.0

    async def _try(self) -> None:
        key = f"self-test/{token_hex(16)}"
        try:
            with suppress(StoreError):
                await self.store.put(key, bytes(FULL_TRY_BYTES) if self.store.writes.full else b"self-test")
        except asyncio.CancelledError:
            await remove_in_passing(self.store, key)
            raise
        with suppress(StoreError):
            await self.store.delete([key])
