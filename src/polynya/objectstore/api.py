"""What a store is: the protocol, its errors, and what follows from them alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError

KEY_BYTES_MAX = 1024  # S3's own limit
OBJECT_BYTES_MAX = 1 << 30  # one put: above it S3 wants multipart uploads, whose conditions few servers keep
_CONTROL = frozenset(map(chr, range(32))) | {"\x7f", "\\"}


class StoreError(PolynyaError):
    """The root of what a store raises."""


class NotFound(StoreError):
    """No object has the key."""


class AlreadyExists(StoreError):
    """Put if absent: the key is taken (perhaps by an earlier try of one's own, see `put_again`)."""


class Conflict(StoreError):
    """Compare and swap: the object is not what was expected. Read again."""


class StoreUnavailable(StoreError):
    """Not now. A write may or may not have happened: repeat it with the same key and bytes. `reason`: why, without places and names, as anybody
    may be told. `full`: there is no room, which waiting does not change."""

    def __init__(self, message: str, reason: str = "it cannot be reached; the log says more", *, full: bool = False) -> None:
        super().__init__(message)
        self.reason, self.full = reason, full


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """What is known of an object without its bytes. `etag` is "" in a local listing (it would cost reading the object)."""

    key: str
    size: int
    etag: str
    modified_ms: int


class ObjectStore(Protocol):
    """An object store. Keys are `/`-separated paths as `check_key` allows; a key is never also a folder of other keys."""

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> str:
        """Create the object of the concatenated parts; its etag. Raises AlreadyExists, StoreUnavailable."""
        ...

    async def get(self, key: str) -> bytes:
        """All bytes. Raises NotFound, StoreUnavailable."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`. Raises NotFound, StoreUnavailable, ValueError (outside the object)."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises NotFound, StoreUnavailable."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects below the folder `prefix` ("" or ending in "/"), behind `after`, a key that an earlier listing gave. The order is
        the store's own and fixed: ascending keys, though SeaweedFS puts `a/b` before `a-b`. Raises StoreUnavailable."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Absent is fine. Raises StoreUnavailable (some may be gone)."""
        ...

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        """Replace the object whose etag is `expected` (None: create it); the new etag. Raises Conflict, StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Let go of threads and connections; no call may follow."""
        ...


def check_key(key: str) -> str:
    """The key itself, or ValueError. No empty segments, none that begin with a dot (the local store keeps its own there)."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or not _CONTROL.isdisjoint(key):
        raise ValueError(f"not an object key: {key!r}")
    if any(not segment or segment.startswith(".") for segment in key.split("/")):
        raise ValueError(f"an object key has no empty segments and none that begin with a dot: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself ("" or a folder with its "/"), or ValueError."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"a listing's prefix ends in '/': {prefix!r}")
        check_key(prefix[:-1])
    return prefix


def as_parts(parts: bytes | Sequence[bytes]) -> Sequence[bytes]:
    """The parts of a put; ValueError above `OBJECT_BYTES_MAX`."""
    pieces = [parts] if isinstance(parts, bytes) else parts
    if sum(map(len, pieces)) > OBJECT_BYTES_MAX:
        raise ValueError(f"an object has at most {OBJECT_BYTES_MAX} bytes")
    return pieces


async def put_again(store: ObjectStore, key: str, parts: bytes | Sequence[bytes]) -> None:
    """`put`, for a key that only this caller can have chosen: an object with the same bytes is an earlier try that did succeed.

    Raises AlreadyExists when other bytes are there, StoreUnavailable."""
    try:
        await store.put(key, parts)
    except AlreadyExists:
        try:
            there = await store.get(key)
        except NotFound:  # S3 may say 409 to two racing creates and keep neither (arrow-rs #6801)
            raise StoreUnavailable(f"{key}: refused as existing, yet it is not there") from None
        if there != b"".join(as_parts(parts)):
            raise
