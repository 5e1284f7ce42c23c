"""The object store protocol, its errors, and helpers that depend only on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError

KEY_BYTES_MAX = 1024  # the limit of S3
# one put; above it S3 requires multipart uploads, and few servers honour their conditions
OBJECT_BYTES_MAX = 1 << 30
_CONTROL = frozenset(map(chr, range(32))) | {"\x7f", "\\"}


class StoreError(PolynyaError):
    """The base class of store errors."""


class NotFound(StoreError):
    """No object has the key."""


class AlreadyExists(StoreError):
    """Put if absent failed because the key exists, perhaps from an own earlier attempt (see
    `put_again`)."""


AWAY = "the object store cannot be reached; the log says more"  # as clients may be told


class Conflict(StoreError):
    """Compare and swap failed because the object is not the expected one. Read it again."""


class StoreUnavailable(StoreError):
    """The store is unavailable now. A write may have happened: repeat it with the same key and
    bytes.

    `reason` is the cause without addresses and names, safe to show to clients. `full` means that
    there is no space, so waiting does not help.
    """

    def __init__(self, message: str, reason: str = AWAY, *, full: bool = False) -> None:
        super().__init__(message)
        self.reason, self.full = reason, full


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """Metadata of an object. `etag` is "" in a local listing, because computing it would read the
    object."""

    key: str
    size: int
    etag: str
    modified_ms: int


class ObjectStore(Protocol):
    """An object store. Keys are `/`-separated paths as `check_key` allows; a key is never also a
    folder of other keys."""

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        """Create the object from the concatenated parts. Raises AlreadyExists, StoreUnavailable.

        It returns no etag: a local store would hash each pack, and only swaps compare."""
        ...

    async def get(self, key: str) -> bytes:
        """Return all bytes. Raises NotFound, StoreUnavailable."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from `start`. Raises NotFound, StoreUnavailable, ValueError
        (outside the object)."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return the object's metadata. Raises NotFound, StoreUnavailable."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects below the folder `prefix` ("" or ending in "/"), after the key `after`
        from an earlier listing.

        The order is fixed for each store: ascending keys, except that SeaweedFS puts `a/b` before
        `a-b`. Raises StoreUnavailable.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing keys are accepted. Raises StoreUnavailable (some may be
        deleted)."""
        ...

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        """Replace the object whose etag is `expected` (None: create it). Return the new etag.
        Raises Conflict, StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Release threads and connections; no call may follow."""
        ...


def check_key(key: str) -> str:
    """Return the key, or raise ValueError. Segments must not be empty or begin with a dot, which
    the local store reserves."""
    if not key or len(key.encode()) > KEY_BYTES_MAX or not _CONTROL.isdisjoint(key):
        raise ValueError(f"not an object key: {key!r}")
    if any(not segment or segment.startswith(".") for segment in key.split("/")):
        raise ValueError(
            f"an object key has no empty segments and none that begin with a dot: {key!r}"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix ("" or a folder with its "/"), or raise ValueError."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"a listing's prefix ends in '/': {prefix!r}")
        check_key(prefix[:-1])
    return prefix


def as_parts(parts: bytes | Sequence[bytes]) -> Sequence[bytes]:
    """Return the parts of a put. Raises ValueError above `OBJECT_BYTES_MAX`."""
    pieces = [parts] if isinstance(parts, bytes) else parts
    if sum(map(len, pieces)) > OBJECT_BYTES_MAX:
        raise ValueError(f"an object has at most {OBJECT_BYTES_MAX} bytes")
    return pieces


async def put_again(store: ObjectStore, key: str, parts: bytes | Sequence[bytes]) -> None:
    """Put an object under a key that only this caller can have chosen. The same bytes from an
    earlier attempt count as success.

    Raises AlreadyExists if other bytes exist, StoreUnavailable.
    """
    try:
        await store.put(key, parts)
    except AlreadyExists:
        try:
            there = await store.get(key)
        except (
            NotFound
        ):  # S3 may answer 409 to two racing creates and keep neither (arrow-rs #6801)
            raise StoreUnavailable(
                f"{key}: the store refused the put as existing, but has no such object; retry"
            ) from None
        if there != b"".join(as_parts(parts)):
            raise
