"""States that a core has computed for readers, kept for the next ones: these apply what came since.

A query by key would otherwise restore the whole snapshot each time. Records before a stable end never
change, so a state stays right; a new incarnation, and a new revision, are other states.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from polynya.base.limits import REDUCER_KEPT_BYTES, REDUCER_KEPT_STATE_BYTES
from polynya.reducers.reducer import Reducer

Key = tuple[int, str, int]  # the stream's uid, the reducer and its revision


class Kept(msgspec.Struct, gc=False):
    """A state after the records before `record`. `size`: bytes of its snapshot and of the records
    that were applied to it, which bound it. `reducer` None: there is none."""

    lock: asyncio.Lock
    reducer: Reducer | None = None
    record: int = 0
    byte: int = 0
    size: int = 0
    users: int = 0

    def drop(self) -> None:
        """Forget the state."""
        if self.reducer is not None:
            self.reducer.close()
        self.reducer, self.size = None, 0


class KeptStates:
    """The states of one core, the one that was used longest ago first."""

    def __init__(self) -> None:
        self._kept: dict[Key, Kept] = {}

    @asynccontextmanager
    async def held(self, key: Key) -> AsyncIterator[Kept]:
        """Hold a state alone, to compute and to read it. One that is too large is not kept."""
        kept = self._kept.pop(key, None) or Kept(asyncio.Lock())
        self._kept[key] = kept
        kept.users += 1
        try:
            async with kept.lock:
                yield kept
        finally:
            kept.users -= 1
            self._shrink()

    def _shrink(self) -> None:
        size = sum(kept.size for kept in self._kept.values())
        for key, kept in list(self._kept.items()):
            is_too_large = kept.reducer is None or kept.size > REDUCER_KEPT_STATE_BYTES
            if not kept.users and (is_too_large or size > REDUCER_KEPT_BYTES):
                size -= kept.size
                kept.drop()
                del self._kept[key]
