"""A store in the memory of one process, for tests and for nodes without durable data."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from polynya.objectstore.api import (
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectInfo,
    as_parts,
    check_key,
    check_prefix,
)


class MemoryStore:
    """An in-memory `ObjectStore`. `objects` maps key to (bytes, version, modified ms); the version
    is the etag."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int, int]] = {}
        self._version = 0

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        data = b"".join(as_parts(parts))
        if check_key(key) in self.objects:
            raise AlreadyExists(key)
        self._store(key, data)

    async def get(self, key: str) -> bytes:
        return self._found(key)[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._found(key)[0]
        if start < 0 or length < 0 or start + length > len(data):
            raise ValueError(f"{key} has {len(data)} bytes, asked for {length} from {start}")
        return data[start : start + length]

    async def head(self, key: str) -> ObjectInfo:
        return self._info(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        for key in keys[bisect_right(keys, after) :]:
            if key in self.objects:
                yield self._info(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(check_key(key), None)

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        there = self.objects.get(check_key(key))
        if (None if there is None else str(there[1])) != expected:
            raise Conflict(key)
        return self._store(key, bytes(data))

    async def close(self) -> None:
        pass

    def _found(self, key: str) -> tuple[bytes, int, int]:
        found = self.objects.get(check_key(key))
        if found is None:
            raise NotFound(key)
        return found

    def _info(self, key: str) -> ObjectInfo:
        data, version, modified_ms = self._found(key)
        return ObjectInfo(key, len(data), str(version), modified_ms)

    def _store(self, key: str, data: bytes) -> str:
        self._version += 1
        self.objects[key] = (data, self._version, time.time_ns() // 1_000_000)
        return str(self._version)
