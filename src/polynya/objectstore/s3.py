"""S3 and compatible stores through obstore. Conditional writes are never retried inside: a retry
would see its own success as a conflict.

obstore must not be used in a process that forks afterwards, because the forked child's first call
hangs. So the server imports it only here, and opens a store only where it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store as Bucket

from polynya.objectstore.api import (
    AlreadyExists,
    Conflict,
    NotFound,
    ObjectInfo,
    StoreUnavailable,
    as_parts,
    check_key,
    check_prefix,
)
from polynya.objectstore.s3_refusals import describe, reason, says_nothing

T = TypeVar("T")
_REQUEST_SECONDS = 30.0
_CALL_SECONDS = 90.0  # whole call, including obstore's read retries
_READ_RETRIES = 3


class S3Store:
    """An `ObjectStore` in a bucket, below `prefix` if given. `config` is obstore's `S3Config`."""

    def __init__(self, bucket: str, config: dict[str, str], prefix: str = "") -> None:
        self.location = f"s3://{bucket}/{prefix}"
        self._reads = _bucket(bucket, config, prefix, _READ_RETRIES)
        self._writes = _bucket(bucket, config, prefix, 0)

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        pieces = [part for part in as_parts(parts) if part]
        put = obstore.put_async(
            self._writes,
            check_key(key),
            iter(pieces) if pieces else b"",
            mode="create",
            use_multipart=False,
        )
        try:
            await self._call(put)
        except (AlreadyExistsError, PreconditionError):
            raise AlreadyExists(key) from None

    async def get(self, key: str) -> bytes:
        result = await self._call(_all_bytes(self._reads, check_key(key)))
        return bytes(result)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        if start < 0 or length < 0:
            raise ValueError(f"{key}: asked for {length} bytes from {start}")
        if not length:
            return b""
        try:
            data = bytes(
                await self._call(
                    obstore.get_range_async(self._reads, key, start=start, length=length)
                )
            )
        except StoreUnavailable as fault:
            if (await self.head(key)).size < start + length:
                raise ValueError(f"{key} is shorter than {start + length} bytes") from None
            raise fault from None
        if len(data) != length:
            raise ValueError(f"{key} ends after {len(data)} of the {length} bytes from {start}")
        return data

    async def head(self, key: str) -> ObjectInfo:
        try:
            return _info(await self._call(obstore.head_async(self._reads, check_key(key))))
        except StoreUnavailable as fault:
            if fault.__cause__ is not None and says_nothing(fault.__cause__):
                # unlike HEAD, this refusal has a reason
                await self._call(obstore.get_range_async(self._reads, key, start=0, length=1))
            raise

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        stream = obstore.list(
            self._reads, prefix=prefix or None, offset=after or None, chunk_size=1000
        )
        while page := await self._call(_next_page(stream)):
            for meta in page:
                yield _info(meta)

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [check_key(key) for key in keys]
        try:
            if paths:
                await self._call(obstore.delete_async(self._reads, paths))
        except NotFound:  # some servers report it after the bulk call has tried all keys
            pass

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        mode: Any = "create" if expected is None else {"e_tag": expected}
        try:
            return _etag(
                await self._call(
                    obstore.put_async(
                        self._writes, check_key(key), data, mode=mode, use_multipart=False
                    )
                )
            )
        except (
            AlreadyExistsError,
            PreconditionError,
            NotFound,
        ):  # S3: 412; 409 for racing swaps; 404 if the object is gone
            raise Conflict(key) from None

    async def close(self) -> None:
        """Do nothing: obstore closes idle connections itself."""

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Await with a time limit and translate obstore's errors.

        Conditional errors pass through, because their meaning depends on the call.
        """
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await work
        except FileNotFoundError as fault:
            raise NotFound(f"{self.location}: {describe(fault)}") from None
        except (AlreadyExistsError, PreconditionError):
            raise
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.location}: no response within {_CALL_SECONDS:.0f} s", "it does not respond"
            ) from None
        except (BaseError, OSError) as fault:
            raise StoreUnavailable(f"{self.location}: {describe(fault)}", reason(fault)) from fault


def _bucket(name: str, config: dict[str, str], prefix: str, retries: int) -> Bucket:
    options: Any = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=5),
    }
    if config.get("endpoint", "").startswith("http://"):
        options["allow_http"] = True
    retry: Any = {"max_retries": retries, "retry_timeout": timedelta(seconds=_REQUEST_SECONDS)}
    settings: Any = {**config, "conditional_put": "etag"}
    return Bucket(
        name,
        prefix=prefix.strip("/") or None,
        config=settings,
        client_options=options,
        retry_config=retry,
    )


async def _all_bytes(bucket: Bucket, key: str) -> Any:
    return await (await obstore.get_async(bucket, key)).bytes_async()


async def _next_page(stream: Any) -> Any:
    async for page in stream:
        return page
    return []


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(
        meta["path"],
        meta["size"],
        meta["e_tag"] or "",
        int(meta["last_modified"].timestamp() * 1000),
    )


def _etag(result: Any) -> str:
    """Return the ETag, or "". Compare-and-swap needs one; the startup self-test detects stores
    without it."""
    return result["e_tag"] or ""
