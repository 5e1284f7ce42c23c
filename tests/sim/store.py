"""An object store shared by all simulated nodes. It fails as S3 does: late, with 503, with a write
whose response is lost, with stale listings, with a spurious 409."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import TypeVar

import msgspec
from sim.process import NOBODY

from polynya.objectstore import MemoryStore, ObjectInfo, ObjectStore, StoreUnavailable
from polynya.objectstore.api import AlreadyExists, Conflict

Result = TypeVar("Result")


class Weather(msgspec.Struct, frozen=True):
    """Shares of calls; seconds."""

    away: float = 0.0  # 503, and nothing happened
    untold: float = 0.0  # a time-out, and it happened; perhaps later
    conflict: float = 0.0  # 409 or 412 to a write without a race
    stale: float = 0.0  # a listing that knows nothing of the last seconds
    delay: tuple[float, float] = (0.001, 0.01)


GOOD = Weather()
STALE_SECONDS = 5.0


class SimStore(MemoryStore):
    """The store of one world. A write in flight happens even if its sender crashes."""

    def __init__(self, seed: int, wall_ms: Callable[[], int]) -> None:
        super().__init__()
        self.random = Random(f"store {seed}")
        self.weather = GOOD
        self.faults: Counter[str] = Counter()
        self.refused: set[int] = set()  # nodes to which it says 403
        self._wall_ms = wall_ms
        self._tasks: set[asyncio.Task[object]] = set()
        self._born: dict[str, float] = {}

    def on(self, node: int, dies: Callable[[str, str], bool]) -> ObjectStore:
        """Return this node's view of the store. `dies`: whether the node crashes at this moment of
        this call."""
        return _Refusing(self, node, dies)

    def _store(self, key: str, data: bytes) -> str:
        self._version += 1
        self.objects[key] = (data, self._version, self._wall_ms())
        self._born[key] = asyncio.get_running_loop().time()
        return str(self._version)

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        self._may_conflict(AlreadyExists(key))
        put = super().put
        await self._write(lambda: put(key, parts))

    async def get(self, key: str) -> bytes:
        await self._on_the_way()
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._on_the_way()
        return await super().get_range(key, start, length)

    async def head(self, key: str) -> ObjectInfo:
        await self._on_the_way()
        return await super().head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._on_the_way()
        before = asyncio.get_running_loop().time() - (
            STALE_SECONDS if self._happens("stale", self.weather.stale) else 0.0
        )
        async for info in super().list(prefix, after):
            if self._born[info.key] <= before:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        delete = super().delete
        await self._write(lambda: delete(keys))

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        self._may_conflict(Conflict(key))
        swap = super().compare_and_swap
        return await self._write(lambda: swap(key, data, expected))

    # --- faults

    def _happens(self, name: str, share: float) -> bool:
        happens = self.random.random() < share
        self.faults[name] += happens
        return happens

    def _may_conflict(self, fault: Exception) -> None:
        if self._happens("409", self.weather.conflict):
            raise fault

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self.random.uniform(*self.weather.delay))
        if self._happens("503", self.weather.away):
            raise StoreUnavailable("503 Slow Down")

    async def _write(self, work: Callable[[], object]) -> Result:  # type: ignore[type-var]
        await self._on_the_way()
        untold = self._happens("untold", self.weather.untold)
        late = (
            self.random.uniform(0.0, 3.0)
            if untold and self.random.random() < 0.3
            else self.random.uniform(*self.weather.delay)
        )

        async def happen() -> object:
            await asyncio.sleep(late)
            return await work()  # type: ignore[misc]

        # not the node's: it may stand still, or die
        task = asyncio.get_running_loop().create_task(happen(), context=NOBODY.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if untold:
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
            raise StoreUnavailable("no answer came in time")
        return await asyncio.shield(task)  # type: ignore[return-value]

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


class _Refusing:
    """The store of one node, which it may refuse."""

    def __init__(self, store: SimStore, node: int, dies: Callable[[str, str], bool]) -> None:
        self._store, self._node, self._dies = store, node, dies

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        await self._lives("before")
        await self._open().put(key, parts)
        await self._lives("after")

    async def _lives(self, moment: str) -> None:
        if self._dies("put", moment):
            # the caller does not live to see the end
            await asyncio.get_running_loop().create_future()

    async def get(self, key: str) -> bytes:
        return await self._open().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._open().get_range(key, start, length)

    async def head(self, key: str) -> ObjectInfo:
        return await self._open().head(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._open().list(prefix, after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._open().delete(keys)

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return await self._open().compare_and_swap(key, data, expected)

    async def close(self) -> None:
        await self._store.close()

    def _open(self) -> SimStore:
        if self._node in self._store.refused:
            self._store.faults["403"] += 1
            raise StoreUnavailable("403 Forbidden", "403 Forbidden")
        return self._store
