"""The store of group snapshots: one durable file per group (docs/formats/snapshots.md)."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct

import msgspec
from google_crc32c import value

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal.errors import DiskFull, is_full
from polynya.wal.files import Files, OsFiles

KIND_BASE = 1  # 2 delta and 3 tombstone are reserved
FORMAT_VERSION = 1
HEADER_BYTES = 64

_MAGIC = b"POLYNYAS"
_HEADER = Struct("<8sIHHIIQQQQI")
_NAME = re.compile(r"g(\d{5})-(\d{20})\.snap", re.ASCII)
_TEMPORARY = ".tmp"


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """The state of a group after the entry (`term`, `index`)."""

    group: int
    term: int
    index: int
    body: bytes


class SnapshotStore:
    """Blocking; calls for different groups may run in different threads."""

    def __init__(self, directory: Path, *, files: Files | None = None) -> None:
        """Makes the folder and removes what a crash left half-written. Raises `OSError`."""
        self._folder = directory
        self._files = OsFiles() if files is None else files
        self._files.make_folder(directory)
        for name in self._files.names(directory):
            if name.endswith(_TEMPORARY):
                self._files.unlink(directory / name)

    def write(self, group: int, term: int, index: int, body: bytes) -> None:
        """Durable when it returns; then the group's older ones are gone. Raises `DiskFull` (the old one stays) and `OSError`."""
        path = self._folder / f"g{group:05d}-{index:020d}.snap"
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            self._write_new(temporary, [pack_header(group, term, index, body), body])
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"no room for a snapshot in {self._folder}: {error.strerror}") from error
            raise
        self._files.rename(temporary, path)
        self._files.sync_folder(self._folder)
        self._remove_older(group, index)

    def latest(self) -> dict[int, Snapshot]:
        """The newest snapshot of each group, by group. Raises `CorruptData` when one is damaged: an older one would not fit the journal."""
        newest: dict[int, int] = {}
        for group, index in self._found():
            newest[group] = max(index, newest.get(group, -1))
        return {group: self._read(group, index) for group, index in newest.items()}

    def read(self, group: int, index: int) -> Snapshot:
        """One that `write` was given. Raises `OSError` when it is gone, `CorruptData`."""
        return self._read(group, index)

    def remove(self, group: int) -> None:
        """All of the group's are gone, durably, when it returns. Raises `OSError`."""
        for other, index in self._found():
            if other == group:
                self._files.unlink(self._path(group, index))
        self._files.sync_folder(self._folder)

    def _write_new(self, path: Path, buffers: list[bytes]) -> None:
        if path.name in self._files.names(self._folder):
            self._files.unlink(path)  # of an attempt that failed
        fd = self._files.create(path)
        try:
            self._files.write(fd, buffers, 0)
            self._files.sync(fd)
        except OSError:
            self._files.unlink(path)
            raise
        finally:
            self._files.close(fd)

    def _remove_older(self, group: int, index: int) -> None:
        for other, older in self._found():
            if other == group and older < index:
                self._files.unlink(self._path(group, older))

    def _found(self) -> list[tuple[int, int]]:
        matches = (_NAME.fullmatch(name) for name in self._files.names(self._folder))
        return [(int(match[1]), int(match[2])) for match in matches if match]

    def _path(self, group: int, index: int) -> Path:
        return self._folder / f"g{group:05d}-{index:020d}.snap"

    def _read(self, group: int, index: int) -> Snapshot:
        path = self._path(group, index)
        fd = self._files.open(path)
        try:
            data = self._files.read(fd, self._files.size(fd), 0)
        finally:
            self._files.close(fd)
        snapshot = parse_snapshot(data)
        if isinstance(snapshot, int):
            raise ConfigError(
                f"{path} has snapshot format {snapshot}; this release reads format {FORMAT_VERSION}: use the release that wrote it"
            )
        if isinstance(snapshot, str):
            raise _corrupt(path, snapshot)
        if (snapshot.group, snapshot.index) != (group, index):
            raise _corrupt(path, f"it is the snapshot of group {snapshot.group} at {snapshot.index} under another name")
        return snapshot


def pack_header(group: int, term: int, index: int, body: bytes) -> bytes:
    """The 64 bytes before the body."""
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, KIND_BASE, 0, group, value(body), term, index, 0, len(body), 0)
    return head + int(value(head)).to_bytes(4, "little")


def parse_snapshot(data: bytes) -> Snapshot | int | str:
    """The snapshot; the version when it is sound but not ours; or what is wrong."""
    head = data[: HEADER_BYTES - 4]
    if len(data) < HEADER_BYTES or not head.startswith(_MAGIC):
        return "it has no header of a snapshot"
    if value(head) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        return "the checksum of its header is wrong"
    _, version, kind, _, group, body_crc, term, index, _, length, _ = _HEADER.unpack(head)
    if version != FORMAT_VERSION:
        return int(version)
    if kind != KIND_BASE:
        return f"it is of kind {kind}, which this release does not write"
    body = data[HEADER_BYTES:]
    if len(body) != length:
        return f"its body has {len(body)} bytes instead of {length}"
    if value(body) != body_crc:
        return "the checksum of its body is wrong"
    return Snapshot(group, term, index, body)


def _corrupt(path: Path, why: str) -> CorruptData:
    return CorruptData(
        f"snapshot {path} is damaged: {why}. Nothing was changed, and no older snapshot is used in its place, since the journal before it is "
        "gone. Keep a copy of the folder, check the disk, and put the file back from a backup or from another copy"
    )
