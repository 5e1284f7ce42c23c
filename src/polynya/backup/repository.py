"""Repositories of backups: a folder, a key prefix in a bucket, or a tar file. The first two are
ordinary object stores."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from google_crc32c import extend

from polynya.backup.manifest import MANIFEST, Manifest, decode, folder_of, is_id
from polynya.base.errors import ConfigError, CorruptData
from polynya.objectstore import NotFound, ObjectInfo

READ_BYTES = 8 << 20


class RepositoryReader(Protocol):
    """The read side of a repository; errors are those of an `ObjectStore`."""

    async def get(self, key: str) -> bytes: ...

    async def get_range(self, key: str, start: int, length: int) -> bytes: ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]: ...

    async def close(self) -> None: ...


class Repository(Protocol):
    """The write side of a repository."""

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None: ...

    async def close(self) -> None: ...


class TarWriter:
    """One backup written as one tar stream. Concurrent puts are written one after the other."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._turn = asyncio.Lock()
        self._tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 (closed by `close`)

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        pieces = [parts] if isinstance(parts, bytes) else parts
        info = tarfile.TarInfo(key)
        info.size, info.mode, info.mtime = sum(map(len, pieces)), 0o600, int(time.time())
        async with self._turn:
            await asyncio.to_thread(self._tar.addfile, info, _Joined(pieces))

    async def close(self) -> None:
        self._tar.close()
        self._file.flush()

    def abandon(self) -> None:
        """Close the file without writing the data that the tar stream still buffers, now or
        later."""
        stream = self._tar.fileobj
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.close()


class TarReader:
    """A backup in a seekable tar file. Raises CorruptData."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._extents: dict[str, tuple[int, int]] = {}
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    self._extents[member.name] = (member.offset_data, member.size)
        except (tarfile.TarError, OSError) as error:
            self._file.close()
            raise CorruptData(f"{path} is not a tar file, or is truncated: {error}") from None
        self._lock = asyncio.Lock()

    async def get(self, key: str) -> bytes:
        return await self.get_range(key, 0, self._extent(key)[1])

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        begin, size = self._extent(key)
        if start < 0 or start + length > size:
            raise ValueError(f"{key} has {size} bytes")
        async with self._lock:
            data = await asyncio.to_thread(self._read, begin + start, length)
        if len(data) != length:
            raise ValueError(f"{key}: the file is truncated")
        return data

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for key in sorted(self._extents):
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key, self._extents[key][1], "", 0)

    async def close(self) -> None:
        self._file.close()

    def _extent(self, key: str) -> tuple[int, int]:
        try:
            return self._extents[key]
        except KeyError:
            raise NotFound(key) from None

    def _read(self, begin: int, length: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(length)


class _Joined(io.RawIOBase):
    """A single-use file object over joined pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [memoryview(piece) for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found: list[memoryview] = []
        while self._pieces and size:
            piece = self._pieces.pop(0)
            if 0 <= size < len(piece):
                self._pieces.insert(0, piece[size:])
                piece = piece[:size]
            found.append(piece)
            size -= len(piece) if size > 0 else 0
        return b"".join(found)


async def backups_on(repository: RepositoryReader) -> list[Manifest]:
    """Return the complete backups in a repository, oldest first.

    Backups deleted during the call are skipped. Raises CorruptData, StoreUnavailable.
    """
    found = []
    async for info in repository.list("backups/"):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == MANIFEST and is_id(parts[1]):
            with suppress(NotFound):
                found.append(await _manifest(repository, parts[1]))
    return sorted(found, key=lambda each: each.id)


async def read_manifest(repository: RepositoryReader, backup: str) -> Manifest:
    """Return the manifest of a backup. Raises ConfigError if there is no such backup,
    CorruptData."""
    try:
        return await _manifest(repository, backup)
    except NotFound:
        raise ConfigError(f"there is no backup {backup} in the repository") from None


async def _manifest(repository: RepositoryReader, backup: str) -> Manifest:
    try:
        manifest = decode(await repository.get(f"{folder_of(backup)}/{MANIFEST}"))
    except CorruptData as error:
        raise CorruptData(f"{folder_of(backup)}/{MANIFEST}: {error}") from None
    if manifest.id != backup:
        raise CorruptData(f"{folder_of(backup)}/{MANIFEST} is the manifest of backup {manifest.id}")
    return manifest


async def chosen(repository: RepositoryReader, backup: str = "") -> Manifest:
    """Return the manifest of the named backup, or of the newest. Raises ConfigError, CorruptData,
    StoreUnavailable."""
    if backup:
        return await read_manifest(repository, backup)
    names = [info.key.split("/") async for info in repository.list("backups/")]
    whole = sorted(
        name[1] for name in names if len(name) == 3 and name[2] == MANIFEST and is_id(name[1])
    )
    if not whole:
        unfinished = any(len(name) > 2 for name in names)
        raise ConfigError(
            "the repository has no complete backup"
            + (", only an interrupted one" if unfinished else "")
        )
    return await read_manifest(repository, whole[-1])


async def parts_of(
    repository: RepositoryReader, name: str, size: int, crc: int
) -> AsyncIterator[bytes]:
    """Yield the parts of a file in order. Raises CorruptData with the file's name if the checksum
    does not match, StoreUnavailable."""
    found_crc = found = number = 0
    while found < size:
        try:
            part = await part_of(repository, name, number)
        except CorruptData as error:
            if not found:
                raise
            raise CorruptData(
                f"{name} is truncated: it has {found:,} of {size:,} bytes, and {error}"
            ) from None
        found, number = found + len(part), number + 1
        found_crc = int(extend(found_crc, part))
        yield part
    if found != size or found_crc != crc:
        raise CorruptData(f"{name} is damaged: its checksum is wrong")


async def part_of(repository: RepositoryReader, name: str, number: int) -> bytes:
    """Return one part of a file. Raises CorruptData if it is missing or empty."""
    key = f"{name}/{number:05d}"
    try:
        part = await repository.get(key)
    except (NotFound, ValueError):
        raise CorruptData(f"{key} is missing") from None
    if not part:
        raise CorruptData(f"{key} is empty")
    return part
