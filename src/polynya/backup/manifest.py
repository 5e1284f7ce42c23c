"""The manifest of a backup and the list of its objects (docs/formats/backup.md)."""

from __future__ import annotations

import re
import time

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.formats import FORMAT, check_format
from polynya.base.msgpack import UNREADABLE

PART_BYTES = 16 << 20
PART_ROWS = 100_000
MANIFEST = "manifest.json"
_OLDER = (
    "restore it with the release that wrote it, and copy each stream from there with 'polynya "
    "import', or take a new backup"
)
_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}", re.ASCII)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A group's file. `name` is the folder of its parts; `crc` covers all parts."""

    group: int
    name: str
    size: int
    crc: int
    term: int
    index: int
    log_ms: int
    streams: int
    records: int
    hot_bytes: int


class ListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The list of objects. `count` and `bytes` are those of the objects."""

    name: str
    size: int
    crc: int
    count: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a backup."""

    format: int = FORMAT
    id: str
    release: str
    cluster: str
    history: int
    groups: int
    began_ms: int
    ended_ms: int
    files: list[FileEntry]
    objects: ListEntry
    # no transaction committed between two captures; earlier writers did not see to that
    whole_transactions: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def next_history(self) -> int:
        """The history of a cluster restored from this backup."""
        return self.history + 1 + int(crc32c(msgspec.json.encode(self))) % (1 << 20)


class CopiedObject(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A row of the list of objects."""

    key: str
    size: int
    crc: int


def new_id(now_ms: int, random: bytes) -> str:
    """Return a backup id for a time. `random` has four bytes."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_ms // 1000))}{now_ms % 1000:03d}Z-{random.hex()}"


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def folder_of(backup: str) -> str:
    return f"backups/{backup}"


def encode(manifest: Manifest) -> bytes:
    line = msgspec.json.encode(manifest)
    return line + f"\ncrc32c {crc32c(line):08x}\n".encode()


def decode(data: bytes) -> Manifest:
    """Decode a manifest. Raises CorruptData, or ConfigError for a format of another release."""
    line, _, rest = data.partition(b"\n")
    if rest != f"crc32c {crc32c(line):08x}\n".encode():
        raise CorruptData("the checksum of the manifest is wrong")
    try:
        check_format("the backup", msgspec.json.decode(line, type=_Format).format, older=_OLDER)
        return msgspec.json.decode(line, type=Manifest)
    except UNREADABLE as error:
        raise CorruptData(f"the manifest cannot be read: {error}") from None


class _Format(msgspec.Struct):
    format: int


def encode_rows(rows: list[CopiedObject]) -> bytes:
    """Encode one part of the list of objects."""
    return msgspec.msgpack.encode(rows)


def decode_rows(data: bytes) -> list[CopiedObject]:
    """Decode one part of the list. Raises CorruptData."""
    try:
        return msgspec.msgpack.decode(data, type=list[CopiedObject])
    except UNREADABLE as error:
        raise CorruptData(f"the list of objects cannot be read: {error}") from None
