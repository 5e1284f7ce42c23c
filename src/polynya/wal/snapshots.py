"""The store of group snapshots. Each group has a chain of durable files: a root and the deltas that
build on it (docs/formats/snapshots.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from struct import Struct

import msgspec
from google_crc32c import extend, value

from polynya.base.errors import ConfigError, CorruptData
from polynya.files import is_full
from polynya.wal.errors import DiskFull
from polynya.wal.files import Files, OsFiles
from polynya.wal.scratch import Scratch

KIND_BASE = 1
KIND_DELTA = 2
FORMAT_VERSION = 1
HEADER_BYTES = 64

_MAGIC = b"POLYNYAS"
_HEADER = Struct("<8sIHHIIQQQQI")
SUFFIX = ".snap"
_NAME = re.compile(r"g(\d{5})-(\d{20})\.snap", re.ASCII)
_TEMPORARY = ".tmp"
_PIECE_BYTES = 1 << 20


class SnapshotLink(msgspec.Struct, frozen=True, gc=False):
    """The header of one file of a chain: the state after the entry (`term`, `index`), or its
    changes since `base`."""

    group: int
    term: int
    index: int
    length: int  # of the body
    crc: int  # of the body
    delta: bool = False
    base: int = 0  # index of the snapshot that a delta builds on; 0: none

    @property
    def root(self) -> bool:
        return not self.base


class SnapshotFile(msgspec.Struct, frozen=True, gc=False):
    """A link with its body."""

    group: int
    term: int
    index: int
    body: bytes
    delta: bool = False
    base: int = 0


Merge = Callable[[Sequence[SnapshotFile]], bytes]


class SnapshotStore:
    """The snapshot files of a directory. Calls block; calls for different groups may run in
    different threads.

    Invariant: the newest file of a group and its predecessors, down to a root, all exist. Other
      files are leftovers.
    """

    def __init__(self, directory: Path, *, files: Files | None = None, tidy: bool = True) -> None:
        """Create the directory; if `tidy`, remove incomplete files of a crash. Raises `OSError`."""
        self._folder = directory
        self._files = OsFiles() if files is None else files
        self._scratches = count(1)
        self._files.make_folder(directory)
        for name in self._files.names(directory) if tidy else ():
            if name.endswith(_TEMPORARY):
                self._files.unlink(directory / name)

    @property
    def folder(self) -> Path:
        return self._folder

    def write(self, group: int, term: int, index: int, body: bytes) -> SnapshotLink:
        """Write a base durably, then remove older files of the group. Raises `DiskFull` (the old
        ones stay) and `OSError`."""
        link = SnapshotLink(group, term, index, len(body), value(body))
        self._put(link, [body])
        return link

    def write_delta(
        self, group: int, term: int, index: int, body: Sequence[bytes], base: int
    ) -> SnapshotLink:
        """Write a delta on the snapshot at `base`, with its body in pieces. A delta with base 0 is
        a root: older files are removed as by `write`."""
        crc = 0
        for piece in body:
            crc = extend(crc, piece)
        link = SnapshotLink(group, term, index, sum(map(len, body)), crc, delta=True, base=base)
        self._put(link, body)
        return link

    def fold(self, group: int, parts: int, merge: Merge) -> SnapshotLink:
        """Replace the last `parts` files of the chain by one. It has the index of the newest and
        the base of the oldest. A crash leaves either the old chain or the new one."""
        chain = self.chain(group)[-parts:]
        oldest, newest = chain[0], chain[-1]
        body = merge(chain)
        link = SnapshotLink(
            group,
            newest.term,
            newest.index,
            len(body),
            value(body),
            delta=bool(oldest.base),
            base=oldest.base,
        )
        self._put(link, [body])
        return link

    def scratch(self) -> Scratch:
        """Create a temporary file on the same disk. Raises `DiskFull`, `OSError`."""
        return Scratch(self._folder / f"scratch-{next(self._scratches)}{_TEMPORARY}", self._files)

    def groups(self) -> list[int]:
        """Return the groups that have a snapshot."""
        return sorted({group for group, _ in self._found()})

    def missing(self, chains: Mapping[int, Sequence[SnapshotLink]]) -> list[int]:
        """Return the groups whose chains lack files. Recreates a missing directory. Raises
        `OSError`."""
        self._files.make_folder(self._folder)
        there = set(self._found())
        return [
            group
            for group, links in chains.items()
            if any((group, link.index) not in there for link in links)
        ]

    def links(self, group: int) -> list[SnapshotLink]:
        """Return the chain, root first; [] if there is none. Raises `CorruptData` if a file is
        missing or its header damaged, because an older chain would not fit the journal."""
        indexes = {index for other, index in self._found() if other == group}
        links: list[SnapshotLink] = []
        index = max(indexes, default=0)
        while index in indexes:
            links.insert(0, self._read_header(group, index))
            if links[0].root:
                return links
            index = links[0].base
        if links:
            raise _corrupt(
                self._path(group, index),
                f"it is missing, but the snapshot at {links[0].index} builds on it",
            )
        return []

    def chain(self, group: int) -> list[SnapshotFile]:
        """Return the chain with bodies. Raises `CorruptData` and `OSError`."""
        return [self._read(link) for link in self.links(group)]

    def check(self, group: int) -> None:
        """Verify the whole chain piece by piece. Raises the errors of `chain`."""
        for link in self.links(group):
            crc = 0
            for offset in range(0, link.length, _PIECE_BYTES):
                crc = extend(crc, self.read(link, offset, _PIECE_BYTES))
            if crc != link.crc:
                raise _corrupt(self._path(group, link.index), "the checksum of its body is wrong")

    def read(self, link: SnapshotLink, offset: int, length: int) -> bytes:
        """Read part of a body. Raises `OSError` if the file is missing."""
        return self._bytes(
            self._path(link.group, link.index),
            HEADER_BYTES + offset,
            min(length, link.length - offset),
        )

    def _put(self, link: SnapshotLink, body: Sequence[bytes]) -> None:
        path = self._path(link.group, link.index)
        temporary = path.with_name(path.name + _TEMPORARY)
        try:
            self._write_new(temporary, [pack_header(link), *body])
        except OSError as error:
            if is_full(error):
                raise DiskFull(
                    f"no space for a snapshot in {self._folder}: {error.strerror}"
                ) from error
            raise
        self._files.rename(temporary, path)
        self._files.sync_folder(self._folder)
        with suppress(OSError):  # the new file is complete; the next write removes leftovers
            for group, index in self._found():
                if group == link.group and index < link.index and (link.root or index > link.base):
                    self._files.unlink(self._path(group, index))

    def remove(self, group: int) -> None:
        """Remove all snapshots of the group durably. Raises `OSError`."""
        # newest first: a crash leaves a valid chain
        for other, index in sorted(self._found(), reverse=True):
            if other == group:
                self._files.unlink(self._path(group, index))
        self._files.sync_folder(self._folder)

    def _write_new(self, path: Path, buffers: list[bytes]) -> None:
        if path.name in self._files.names(self._folder):
            self._files.unlink(path)  # left by a failed attempt
        fd = self._files.create(path)
        try:
            self._files.write(fd, buffers, 0)
            self._files.sync(fd)
        except OSError:
            self._files.unlink(path)
            raise
        finally:
            self._files.close(fd)

    def _found(self) -> list[tuple[int, int]]:
        matches = (_NAME.fullmatch(name) for name in self._files.names(self._folder))
        return [(int(match[1]), int(match[2])) for match in matches if match]

    def _path(self, group: int, index: int) -> Path:
        return self._folder / f"g{group:05d}-{index:020d}.snap"

    def _bytes(self, path: Path, offset: int, length: int | None = None) -> bytes:
        fd = self._files.open(path)
        try:
            return self._files.read(fd, self._files.size(fd) if length is None else length, offset)
        finally:
            self._files.close(fd)

    def _read_header(self, group: int, index: int) -> SnapshotLink:
        path = self._path(group, index)
        link = parse_header(self._bytes(path, 0, HEADER_BYTES))
        if isinstance(link, int):
            raise ConfigError(
                f"{path} has snapshot format {link}; this release reads format {FORMAT_VERSION}: "
                "use the release that wrote it"
            )
        if isinstance(link, str):
            raise _corrupt(path, link)
        if (link.group, link.index) != (group, index):
            raise _corrupt(
                path, f"it is the snapshot of group {link.group} at {link.index} under another name"
            )
        return link

    def _read(self, link: SnapshotLink) -> SnapshotFile:
        path = self._path(link.group, link.index)
        body = self._bytes(path, HEADER_BYTES)
        if len(body) != link.length:
            raise _corrupt(path, f"its body has {len(body)} bytes instead of {link.length}")
        if value(body) != link.crc:
            raise _corrupt(path, "the checksum of its body is wrong")
        return SnapshotFile(link.group, link.term, link.index, body, link.delta, link.base)


def pack_header(link: SnapshotLink) -> bytes:
    """Encode the 64-byte header."""
    kind = KIND_DELTA if link.delta else KIND_BASE
    head = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        kind,
        0,
        link.group,
        link.crc,
        link.term,
        link.index,
        link.base,
        link.length,
        0,
    )
    return head + int(value(head)).to_bytes(4, "little")


def parse_header(data: bytes) -> SnapshotLink | int | str:
    """Parse the header. Return the version if it is valid but unsupported, or a description of the
    damage."""
    head = data[: HEADER_BYTES - 4]
    if len(data) < HEADER_BYTES or not head.startswith(_MAGIC):
        return "it has no snapshot header"
    if value(head) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        return "the checksum of its header is wrong"
    _, version, kind, _, group, crc, term, index, base, length, _ = _HEADER.unpack(head)
    if version != FORMAT_VERSION:
        return int(version)
    if kind not in (KIND_BASE, KIND_DELTA):
        return f"it is of kind {kind}, which this release does not write"
    if base >= index > 0 or (base and kind == KIND_BASE):
        return f"the snapshot at {index} cannot build on one at {base}"
    return SnapshotLink(group, term, index, length, crc, kind == KIND_DELTA, base)


def _corrupt(path: Path, why: str) -> CorruptData:
    return CorruptData(
        f"snapshot {path} is damaged: {why}. Nothing was changed, and no older snapshot is used "
        "in its place, since the journal before it is "
        "gone. Keep a copy of the folder, check the disk, and put the file back from a backup or "
        "from another copy"
    )
