"""Files without a name: they are gone with the process that made them, however it ends. Blocking; for any thread, one call after the other.

A thread may still be filling a file when whoever wanted it gives it up and closes it: what it does from then on fails. Its descriptor's number
is another file's by then.
"""

from __future__ import annotations

import errno
import os
import threading
from array import array
from pathlib import Path

from google_crc32c import extend
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.limits import KIB
from polynya.wal.errors import DiskFull, is_full
from polynya.wal.files import Files

BLOCK_BYTES = 64 * KIB  # that have a checksum, in memory


class Scratch:
    """Grows at its end, and is read anywhere. Nothing in it is durable."""

    def __init__(self, path: Path, files: Files) -> None:
        """`path`: where it lies for the moment until its name is taken away; nothing may be there. Raises `DiskFull`, `OSError`."""
        self.size = 0
        self._crcs = array("I", [0])  # of the blocks; the last one is not full
        self._files = files
        self._lock = threading.Lock()
        try:
            self._fd = files.create(path)
        except OSError as error:
            raise _told(error) from error
        files.unlink(path)

    def append(self, *buffers: bytes) -> None:
        """Raises `DiskFull`, `OSError`."""
        with self._lock:
            try:
                self._files.write(self._descriptor(), buffers, self.size)
            except OSError as error:
                raise _told(error) from error
            for buffer in buffers:
                self._count(buffer)

    def read(self, offset: int, length: int) -> bytes:
        """Raises `OSError`, `EOFError` when so much is not there."""
        with self._lock:
            data = self._files.read(self._descriptor(), length, offset)
        if len(data) != length:
            raise EOFError(f"{length} bytes at {offset} of {self.size}")
        return data

    def read_checked(self, offset: int, length: int) -> bytes:
        """The same of a file that has all that it will: for who cannot tell whether it is what was written. Raises `CorruptData` when it is not."""
        if offset + length > self.size:
            raise EOFError(f"{length} bytes at {offset} of {self.size}")
        first = offset // BLOCK_BYTES
        begin, end = first * BLOCK_BYTES, min(-(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES, self.size)
        data = self.read(begin, end - begin)
        for number, at in enumerate(range(0, len(data), BLOCK_BYTES), first):
            if crc32c(data[at : at + BLOCK_BYTES]) != self._crcs[number]:
                raise CorruptData(f"the bytes from {begin + at} on of a file on the way between nodes are not what was written")
        return data[offset - begin : offset - begin + length]

    def _count(self, buffer: bytes) -> None:
        at, crcs = 0, self._crcs
        while at < len(buffer):
            piece = bytes(buffer[at : at + BLOCK_BYTES - self.size % BLOCK_BYTES])
            crcs[-1] = extend(crcs[-1], piece)
            at += len(piece)
            self.size += len(piece)
            if self.size % BLOCK_BYTES == 0:
                crcs.append(0)

    def close(self) -> None:
        """Its room is free again. May be called again."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._files.close(fd)

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd


def _told(error: OSError) -> OSError | DiskFull:
    return DiskFull(f"no room for what is sent between nodes: {error.strerror}") if is_full(error) else error
