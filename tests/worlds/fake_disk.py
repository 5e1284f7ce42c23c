"""A disk in memory that separates synced from unsynced data. It fails the N-th call, fills up, and
at a power cut drops, keeps, tears and reorders unsynced sectors."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from polynya.wal import JournalLocked
from polynya.wal.frames import SEGMENT_HEADER_BYTES, SegmentHeader, find_marks, parse_segment_header

SECTOR = 512


class Inode:
    """`cached` is what reads see, `durable` what the platter has, `pending` the changes between
    them."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[
            tuple[int, bytes | None]
        ] = []  # (offset, data), or (length, None) for a new length

    def change(self, offset: int, data: bytes | None) -> None:
        apply(self.cached, offset, data)
        self.pending.append((offset, data))

    def misdirect(self, share: float, random: Random) -> None:
        """Shift some pending writes by some sectors, never over synced data."""
        for number, (offset, data) in enumerate(self.pending):
            if data is not None and random.random() < share:
                self.pending[number] = (offset + SECTOR * random.randint(1, 4), data)

    def persist(self, some: float, random: Random) -> None:
        """Make a share of the pending writes durable, in any order; a sector may be torn."""
        for offset, data in self.pending:
            if data is None:
                if random.random() < some:
                    apply(self.durable, offset, None)
                continue
            begin = 0
            while begin < len(data):
                end = min(len(data), begin + SECTOR - (offset + begin) % SECTOR)
                if random.random() < some:
                    if some < 1 and random.random() < 0.05:
                        end_torn = random.randint(begin, end)
                        apply(
                            self.durable,
                            offset + begin,
                            data[begin:end_torn] + bytes(random.randbytes(end - end_torn)),
                        )
                    else:
                        apply(self.durable, offset + begin, data[begin:end])
                begin = end
        self.pending = []


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        if offset < len(content):
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class FakeDisk:
    """Implements `Files`. Counts its calls; `fail_at` is the number of the one that fails with
    `error`."""

    def __init__(self, random: Random | None = None, *, capacity: int = 1 << 40) -> None:
        self.random = Random(0) if random is None else random
        self.files: dict[Path, Inode] = {}
        self.durable_files: dict[Path, Inode] = {}
        self.pending_names: list[tuple[Path, Inode | None]] = []
        self.open_files: dict[int, Inode] = {}
        self.locks: dict[int, Path] = {}
        self.lock_files: dict[Path, Inode] = {}  # and what is in them, which no power cut takes
        self.calls = 0
        self.fail_at = 0
        self.error = errno.EIO
        self.failed_call = ""
        self.capacity = capacity
        self.nonce = 0
        self.bad_reads = 0.0  # the share of reads that fail with EIO
        # the share of writes in flight at a power cut that land elsewhere behind what was synced
        self.misdirected = 0.0
        self._next_fd = 3
        self._gone_fd = 0

    # what tests do to it

    def kill(self) -> None:
        """Kill the process; the page cache survives."""
        self.open_files.clear()
        self._gone_fd = self._next_fd  # these were closed with the process that had them
        self.locks.clear()
        self.fail_at = 0

    def power_cut(self, some: float) -> None:
        """Let the machine die; `some` is the share of unsynced changes that made it to the disk."""
        self.kill()
        names: dict[Path, Inode] = dict(self.durable_files)
        for path, inode in self.pending_names:
            if self.random.random() < some:
                _name(names, path, inode)
        self.pending_names = []
        for inode in names.values():
            if self.misdirected:
                inode.misdirect(self.misdirected, self.random)
            inode.persist(some, self.random)
            inode.cached = bytearray(inode.durable)
        self.files, self.durable_files = names, dict(names)

    def flip(self, path: Path, at: int) -> None:
        """Flip a bit of that byte, on the medium and in the cache."""
        for content in (self.files[path].durable, self.files[path].cached):
            content[at] ^= 1

    def rot(self, random: Random) -> str:
        """Change a byte of a journal's newest segment that a later mark confirms as synced, and
        return its position. "none" without such a mark: damage behind the last one looks like a
        torn write."""
        segments = sorted(path for path in self.files if path.suffix == ".journal")
        if not segments:
            return "none"
        inode = self.files[segments[-1]]
        durable = bytes(inode.durable)
        header = parse_segment_header(durable)
        if not isinstance(header, SegmentHeader):
            return "none"
        marks = find_marks(durable, SEGMENT_HEADER_BYTES, seed=header.seed(), segment=header.number)
        synced = max(marks, default=0) - (header.number << 32)
        if synced <= SEGMENT_HEADER_BYTES:
            return "none"
        at = random.randrange(SEGMENT_HEADER_BYTES, synced)
        for content in (inode.durable, inode.cached):
            content[at] ^= 1 << random.randrange(8) if content is inode.durable else 0
        inode.cached[at] = inode.durable[at]
        return f"byte {at} of {segments[-1].name}"

    def used(self) -> int:
        return sum(len(inode.cached) for inode in self.files.values())

    # Files

    def make_folder(self, path: Path) -> None:
        self._count("make_folder")

    def lock(self, path: Path) -> int:
        self._count("lock")
        if path in self.locks.values():
            raise JournalLocked(str(path))
        fd = self._fd(self.lock_files.setdefault(path, Inode()))
        self.locks[fd] = path
        return fd

    def create(self, path: Path) -> int:
        self._count("create")
        if path in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = self.files[path] = Inode()
        self.pending_names.append((path, inode))
        return self._fd(inode)

    def open(self, path: Path) -> int:
        self._count("open")
        return self._fd(self._at(path))

    def close(self, fd: int) -> None:
        if fd > self._gone_fd:
            del self.open_files[fd]
        self.locks.pop(fd, None)

    def size(self, fd: int) -> int:
        self._count("size")
        return len(self.open_files[fd].cached)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        self._count("read")
        if self.bad_reads and self.random.random() < self.bad_reads:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self.open_files[fd].cached[offset : offset + length])

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        inode, data = self.open_files[fd], b"".join(buffers)
        growth = max(0, offset + len(data) - len(inode.cached))
        room = self.capacity - self.used()
        try:
            self._count("write")
        except OSError:
            inode.change(offset, data[: self.random.randint(0, len(data))])
            raise
        if growth > room:
            inode.change(offset, data[: max(0, len(inode.cached) + room - offset)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.change(offset, data)

    def allocate(self, fd: int, length: int) -> None:
        self._count("allocate")
        inode = self.open_files[fd]
        if length - len(inode.cached) > self.capacity - self.used():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if length > len(inode.cached):
            inode.change(length, None)

    def truncate(self, fd: int, length: int) -> None:
        self._count("truncate")
        self.open_files[fd].change(length, None)

    def sync(self, fd: int) -> None:
        inode = self.open_files[fd]
        try:
            self._count("sync")
        except OSError:
            # and the rest is marked clean, though only the cache has it
            inode.persist(self.random.random(), self.random)
            raise
        inode.persist(1, self.random)

    def forget(self, fd: int) -> None:
        self._count("forget")
        inode = self.open_files[fd]
        if not inode.pending:
            inode.cached = bytearray(inode.durable)

    def sync_folder(self, path: Path) -> None:
        self._count("sync_folder")
        for name, inode in self.pending_names:
            _name(self.durable_files, name, inode)
        self.pending_names = []

    def rename(self, old: Path, new: Path) -> None:
        self._count("rename")
        inode = self.files.pop(old)
        self.files[new] = inode
        self.pending_names += [(new, inode), (old, None)]

    def unlink(self, path: Path) -> None:
        self._count("unlink")
        self._at(path)
        del self.files[path]
        self.pending_names.append((path, None))

    def names(self, folder: Path) -> list[str]:
        self._count("names")
        return [path.name for path in self.files if path.parent == folder]

    def is_at(self, fd: int, path: Path) -> bool:
        return self.files.get(path) is self.open_files[fd]

    def random64(self) -> int:
        self.nonce += 1
        return self.nonce

    def _at(self, path: Path) -> Inode:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self.files[path]

    def _fd(self, inode: Inode) -> int:
        self._next_fd += 1
        self.open_files[self._next_fd] = inode
        return self._next_fd

    def _count(self, call: str) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            self.failed_call = call
            raise OSError(self.error, os.strerror(self.error))


def _name(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode
