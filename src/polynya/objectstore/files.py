"""The file operations of the local store, one system call each, so that tests can fail any of
them."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READ_ONLY = os.O_RDONLY | os.O_CLOEXEC
SHARED_MODE = 0o755  # mode of a new shared root


class Files:
    """The disk operations of the local store. Raises OSError.

    Files and folders are private to their user. Under a `shared` root they copy the root's group
    and other permissions.
    """

    _shared = ""

    def __init__(self, shared: str = "") -> None:
        self._shared = shared

    def create(self, path: str) -> int:
        """Create an empty file and return its descriptor."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.share(descriptor)
        return descriptor

    def share(self, file: int | str) -> None:
        """Give a file or folder (descriptor or path) the permissions of a shared root. Skip files
        of other users."""
        if not self._shared:
            return
        found = os.stat(file)
        wanted = stat.S_IMODE(os.stat(self._shared).st_mode)
        if not stat.S_ISDIR(found.st_mode):
            wanted &= 0o666
        if stat.S_IMODE(found.st_mode) != wanted:
            with suppress(PermissionError):
                os.chmod(file, wanted)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def link(self, source: str, target: str) -> None:
        """Create a second name exclusively. Raises FileExistsError if `target` exists."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Create one level; an existing folder is accepted."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return
        if path == self._shared:
            os.chmod(path, SHARED_MODE)
        else:
            self.share(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(path, READ_ONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: str, start: int, length: int) -> bytes:
        """Return at most `length` bytes from `start`, or all from `start` if `length` is
        negative."""
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            wanted = size - start if length < 0 else min(length, size - start)
            return _read_exactly(file.fileno(), start, max(wanted, 0))

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock among all threads and processes that lock this file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.share(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read_exactly(descriptor: int, start: int, length: int) -> bytes:
    pieces = []
    while length > 0:
        piece = os.pread(descriptor, length, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
