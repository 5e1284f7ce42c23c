"""Backup locations on the command line: a folder, `s3://BUCKET/PREFIX`, or a tar file."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.cli.terminal import exits
from polynya.files import make_folder, sync_folder

if TYPE_CHECKING:
    from polynya.backup.repository import Repository, RepositoryReader, TarWriter
    from polynya.objectstore import ObjectStore, StoreSettings


def path_of(location: str) -> str:
    """Return the path of a `file:` URL, and other locations as they are. Raises `exits.Misused` for
    other schemes."""
    scheme, mark, rest = location.partition("://")
    if not mark or scheme == "s3":
        return location
    if scheme == "file" and rest.startswith("/"):
        return unquote(rest)
    raise exits.Misused(
        f"{location} is not a backup location: pass a folder, s3://BUCKET/PREFIX, or a file name "
        "that ends in .tar"
    )


def is_file(location: str) -> bool:
    """Return True for a tar file or standard output."""
    return location == "-" or location.endswith(".tar") or Path(location).is_file()


def store_settings(url: str, file: str | None) -> StoreSettings:
    """Return the settings of `s3://BUCKET/PREFIX` or a folder, with the endpoint and credentials of
    'polynya serve'. Raises `exits.Misused`."""
    from polynya.config.loading import load
    from polynya.objectstore import StoreSettings

    if not url.startswith("s3://"):
        return StoreSettings(backend="local", root=os.path.abspath(url))
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        raise exits.Misused(f"{url} names no bucket; expected s3://BUCKET/PREFIX")
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith("POLYNYA_CLUSTER")
    }
    try:
        settings = load(
            {},
            environ={**environ, "POLYNYA_COLD_BACKEND": "s3", "POLYNYA_COLD_S3_BUCKET": bucket},
            path=file,
        ).config.store
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    return msgspec.structs.replace(settings, root=prefix.rstrip("/"))


@asynccontextmanager
async def to_write(
    location: str, file: str | None
) -> AsyncIterator[tuple[Repository, ObjectStore | None]]:
    """Open a location for a backup; yield it, and unless it is a tar file the same store for
    reading. Raises `exits.Ended`."""
    location = path_of(location)
    if not is_file(location):
        if not location.startswith("s3://"):
            _make(location)
        store = open_location(location, file)
        try:
            yield store, store
        finally:
            await store.close()
        return
    if location == "-":
        if sys.stdout.isatty():
            raise exits.Misused(
                "a backup is not written to a terminal: redirect stdout to a file, or pass a folder"
            )
        async with _tar(sys.stdout.buffer) as tar:
            yield tar, None
        return
    path = Path(location)
    temporary = path.with_name(path.name + ".part")  # renamed when complete
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise exits.Refused(f"{temporary} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as out:
            async with _tar(out) as tar:
                yield tar, None
            os.fsync(out.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)  # a partial tar file cannot be resumed
        raise
    temporary.rename(path)
    sync_folder(path.parent)


@asynccontextmanager
async def _tar(file: IO[bytes]) -> AsyncIterator[TarWriter]:
    """Write a tar file; close it on success, abandon it on an error."""
    from polynya.backup.repository import TarWriter

    tar = TarWriter(file)
    try:
        yield tar
        await tar.close()
    except BaseException:
        tar.abandon()
        raise


@asynccontextmanager
async def to_read(location: str, file: str | None) -> AsyncIterator[RepositoryReader]:
    """Open a location for reading. Raises `exits.Ended`."""
    from polynya.backup.repository import TarReader

    if location == "-":
        raise exits.Misused("a backup cannot be read from stdin: save it to a file first")
    location = path_of(location)
    if not location.startswith("s3://") and not os.path.exists(location):
        raise exits.Refused(f"there is no {location}")
    if is_file(location):
        try:
            repository: RepositoryReader = TarReader(Path(location))
        except (OSError, CorruptData) as error:
            raise exits.Refused(str(error)) from None
    else:
        repository = open_location(location, file, to_read=True)
    try:
        yield repository
    finally:
        await repository.close()


def open_location(location: str, file: str | None, *, to_read: bool = False) -> ObjectStore:
    """Open a folder or bucket. Raises `exits.Ended`."""
    from polynya.objectstore import StoreUnavailable, open_store

    try:
        store = open_store(store_settings(location, file), to_read=to_read)
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    except StoreUnavailable as error:
        raise exits.Unreachable(f"{location} cannot be used: {error}") from None
    assert store is not None
    return store


def _make(location: str) -> None:
    """Create a folder with mode 0700: a backup holds stream contents and keys."""
    from polynya.objectstore import MARKER_KEY

    try:
        make_folder(Path(location), mode=0o700)
        names = set(os.listdir(location))
    except OSError as error:
        raise exits.Refused(f"{location} cannot be used: {error.strerror}") from None
    if MARKER_KEY in names or "node.json" in names:
        raise exits.Refused(f"{location} belongs to a node: pass another folder")
