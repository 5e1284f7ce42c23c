"""The embedded store: a folder of files. A file gets its name only after it was written whole and
fsynced.

put: temporary file -> write -> fsync -> link to its name (exclusive) -> fsync of the folder ->
  unlink of the temporary name.
compare_and_swap: the same under the root's lock file, with a rename.

The etag is a hash of the content, as on S3. An etag from time and inode would lose updates: inodes
are reused and coarse times coincide. So `head` reads the object, and a listing carries no etags.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TypeVar

from polynya.files import is_full, make_folder
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
from polynya.objectstore.files import Files

T = TypeVar("T")
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_LEFTOVER_SECONDS = 3600.0  # an older temporary file belongs to a writer that died
_LIST_PAGE = 1000
_KNOWN_FOLDERS_MAX = 4096
_THREADS = 4


class LocalStore:
    """An `ObjectStore` under the folder `root`, which processes of one machine may share."""

    def __init__(
        self,
        root: str,
        files: Files | None = None,
        *,
        late: bool = False,
        to_read: bool = False,
        shared: bool = False,
    ) -> None:
        """Open the store.

        With `late`, a folder that cannot be used yet is no error, and each call tries it again.
        Otherwise raises StoreUnavailable. With `to_read`, nothing is created or removed in the
        folder, which may be read-only. With `shared`, other users may read as the folder's mode
        allows.
        """
        self.root = os.path.abspath(root)
        self._files = files or Files(self.root if shared else "")
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="objects")
        self._synced: set[str] = set()  # folders whose names up to the root this process has synced
        self._is_open = to_read
        if not late and not to_read:
            self._open()

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        await self._run(self._put, check_key(key), as_parts(parts))

    async def get(self, key: str) -> bytes:
        return await self._run(self._get, check_key(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._run(self._get_range, check_key(key), start, length)

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(self._head, check_key(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """List objects. Each folder is read once, regardless of the number of pages."""
        walk = self._walk(check_prefix(prefix), after)
        while page := await self._run(_page, walk):
            for info in page:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(self._delete, [check_key(key) for key in keys])

    async def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> str:
        return await self._run(self._swap, check_key(key), data, expected)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._opened, work, *arguments
            )
        except OSError as fault:
            self._synced.clear()  # another process may have removed a folder
            raise StoreUnavailable(
                f"the object folder {self.root}: {fault}", _reason(fault), full=is_full(fault)
            ) from fault

    # The methods below run in the pool.

    def _opened(self, work: Callable[..., T], *arguments: object) -> T:
        if not self._is_open:
            self._open()
        return work(*arguments)

    def _put(self, key: str, parts: Sequence[bytes]) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        self._make_folders(folder)
        temporary = self._write_temporary(parts)
        try:
            self._files.link(temporary, path)
        except FileExistsError:
            # It may be an own earlier attempt whose folder was never synced. A key reported as
            # existing must be durable.
            self._files.sync_folder(folder)
            raise AlreadyExists(key) from None
        finally:
            self._drop(temporary)
        self._files.sync_folder(folder)

    def _swap(self, key: str, data: bytes, expected: str | None) -> str:
        path = self._path(key)
        folder = os.path.dirname(path)
        self._make_folders(folder)
        with self._files.locked(os.path.join(self.root, _LOCK)):
            if self._etag(path) != expected:
                if os.path.exists(path):
                    self._files.sync_folder(folder)
                raise Conflict(key)
            temporary = self._write_temporary([data])
            try:
                if expected is None:
                    self._files.link(temporary, path)
                else:
                    self._files.rename(temporary, path)
            except FileExistsError:
                raise Conflict(key) from None
            finally:
                self._drop(temporary)
            self._files.sync_folder(folder)
        return _hash(data)

    def _get(self, key: str) -> bytes:
        try:
            return self._files.read(self._path(key), 0, -1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFound(key) from None

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"{key}: asked for {length} bytes from {start}")
        try:
            data = self._files.read(self._path(key), start, length)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFound(key) from None
        if len(data) != length:
            raise ValueError(f"{key} ends after {len(data)} of the {length} bytes from {start}")
        return data

    def _head(self, key: str) -> ObjectInfo:
        data = self._get(key)
        try:
            modified_ms = os.stat(self._path(key)).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            raise NotFound(key) from None
        return ObjectInfo(key, len(data), _hash(data), modified_ms)

    def _delete(self, keys: Sequence[str]) -> None:
        folders = set()
        # a swap must not restore what it had compared
        with self._files.locked(os.path.join(self.root, _LOCK)):
            for key in keys:
                path = self._path(key)
                try:
                    self._files.unlink(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            self._files.sync_folder(folder)

    def _walk(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield objects in key order: a folder sorts as its name with the slash."""
        try:
            with os.scandir(os.path.join(self.root, prefix)) as entries:
                found = sorted(
                    entry.name + "/" * entry.is_dir()
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in found:
            key = prefix + name
            if name.endswith("/"):
                if key >= after or after.startswith(key):
                    yield from self._walk(key, after)
            elif key > after:
                try:
                    status = os.stat(os.path.join(self.root, key))
                except FileNotFoundError:
                    continue
                yield ObjectInfo(key, status.st_size, "", status.st_mtime_ns // 1_000_000)

    def _open(self) -> None:
        """Create the root and delete temporary files of writers that died."""
        try:
            make_folder(Path(self.root).parent)
            self._make_folders(os.path.join(self.root, _TEMPORARY))
            with os.scandir(os.path.join(self.root, _TEMPORARY)) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # another process removed it
                        if time.time() - entry.stat().st_mtime > _LEFTOVER_SECONDS:
                            self._drop(entry.path)
        except OSError as fault:
            raise StoreUnavailable(
                f"the object folder {self.root} cannot be used: {fault}", _reason(fault)
            ) from fault
        self._is_open = True

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key)

    def _etag(self, path: str) -> str | None:
        try:
            return _hash(self._files.read(path, 0, -1))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _make_folders(self, folder: str) -> None:
        """Create and sync every level below the root's parent. An existing folder is synced too,
        because its creator may have died."""
        if folder in self._synced:
            return
        parent = os.path.dirname(folder)
        if folder != self.root:
            self._make_folders(parent)
        self._files.make_folder(folder)
        self._files.sync_folder(parent)
        if len(self._synced) >= _KNOWN_FOLDERS_MAX:
            self._synced.clear()
        self._synced.add(folder)

    def _write_temporary(self, parts: Sequence[bytes]) -> str:
        """Write the parts to a new file and sync it. Return its path."""
        path = os.path.join(self.root, _TEMPORARY, secrets.token_hex(16))
        descriptor = self._files.create(path)
        try:
            try:
                for part in parts:
                    self._write_all(descriptor, part)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        except BaseException:
            self._drop(path)
            raise
        return path

    def _write_all(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._files.write(descriptor, view) :]

    def _drop(self, temporary: str) -> None:
        """Remove a temporary name. On failure a later start removes it."""
        with suppress(OSError):
            self._files.unlink(temporary)


def _reason(fault: OSError) -> str:
    return f"{fault.strerror or type(fault).__name__}; the log says more"


def _page(walk: Iterator[ObjectInfo]) -> Sequence[ObjectInfo]:
    return list(islice(walk, _LIST_PAGE))


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
