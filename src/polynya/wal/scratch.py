"""Unnamed temporary files, which disappear with the process. Calls block; any thread may call, one
at a time.

A thread may still fill a file when its owner closes it. Its later calls then fail instead of
reaching another file that reuses the descriptor number.
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
from polynya.files import is_full
from polynya.wal.errors import DiskFull
from polynya.wal.files import Files

BLOCK_BYTES = 64 * KIB  # block size of the in-memory checksums


class Scratch:
    """A temporary file: append only, random reads, not durable."""

    def __init__(self, path: Path, files: Files) -> None:
        """Create the file. `path` is its name until it is unlinked at once; it must not exist.
        Raises `DiskFull`, `OSError`."""
        self.size = 0
        self._crcs = array("I", [0])  # CRC of each block; the last one is partial
        self._files = files
        self._lock = threading.Lock()
        try:
            self._fd = files.create(path)
        except OSError as error:
            raise _translated(error) from error
        files.unlink(path)

    def append(self, *buffers: bytes) -> None:
        """Append buffers. Raises `DiskFull`, `OSError`."""
        with self._lock:
            try:
                self._files.write(self._descriptor(), buffers, self.size)
            except OSError as error:
                raise _translated(error) from error
            for buffer in buffers:
                self._count(buffer)

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes. Raises `OSError`, or `EOFError` if the file is shorter."""
        with self._lock:
            data = self._files.read(self._descriptor(), length, offset)
        if len(data) != length:
            raise EOFError(f"{length} bytes at {offset} of {self.size}")
        return data

    def read_checked(self, offset: int, length: int) -> bytes:
        """Read from a complete file and verify the checksums. Raises `CorruptData` if the bytes
        differ from those written."""
        if offset + length > self.size:
            raise EOFError(f"{length} bytes at {offset} of {self.size}")
        first = offset // BLOCK_BYTES
        begin, end = (
            first * BLOCK_BYTES,
            min(-(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES, self.size),
        )
        data = self.read(begin, end - begin)
        for number, at in enumerate(range(0, len(data), BLOCK_BYTES), first):
            if crc32c(data[at : at + BLOCK_BYTES]) != self._crcs[number]:
                raise CorruptData(
                    f"the bytes from offset {begin + at} of a temporary transfer file have a "
                    "wrong checksum"
                )
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
        """Close the file and free its space. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._files.close(fd)

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd


def _translated(error: OSError) -> OSError | DiskFull:
    return (
        DiskFull(f"no space for a temporary transfer file: {error.strerror}")
        if is_full(error)
        else error
    )
