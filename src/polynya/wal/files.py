"""The system calls of this package behind one small protocol, so that tests can make each of them
fail, lose or tear data."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from polynya.wal.errors import JournalLocked
from polynya.wal.spare import Spare

_JOINED_BYTES_MAX = 1 << 20  # up to this size, one copy is cheaper than an iovec per buffer …
_JOINED_BUFFER_BYTES_MAX = 8 << 10  # … unless the buffers are larger than this on average
_BUFFERS_MAX = 1000  # buffers of one pwritev; IOV_MAX is 1,024
_NOT_SUPPORTED = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
spare = Spare()


class Files(Protocol):
    """File operations. Calls raise `OSError`; descriptors are ints. Only `sync` and `sync_folder`
    make anything durable."""

    def make_folder(self, path: Path) -> None:
        """Create the directory and its parents durably, if missing."""

    def lock(self, path: Path) -> int:
        """Lock the file until the descriptor is closed; create it if missing. Raises
        `JournalLocked`."""

    def create(self, path: Path) -> int:
        """Open a new file for reading and writing. Raises `FileExistsError` if it exists."""

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write all buffers consecutively. After an error, any part may have been written."""

    def allocate(self, fd: int, length: int) -> None:
        """Allocate disk space so that the file has at least `length` bytes, zeros after the old
        end. A no-op where unsupported."""

    def truncate(self, fd: int, length: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Call fdatasync."""

    def forget(self, fd: int) -> None:
        """Drop the page cache of a file without unsynced data."""

    def sync_folder(self, path: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def names(self, folder: Path) -> list[str]: ...

    def is_at(self, fd: int, path: Path) -> bool:
        """Return whether the open file is still at the path; also True without permission to
        check."""

    def random64(self) -> int: ...


class OsFiles:
    """File operations on the real file system."""

    def make_folder(self, path: Path) -> None:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in missing:
            self.sync_folder(made.parent)

    def lock(self, path: Path) -> int:
        spare.fill()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise JournalLocked(
                f"{path.parent} is in use by another process; stop that process, or choose "
                "another data directory"
            ) from None
        return fd

    def create(self, path: Path) -> int:
        return spare.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def open(self, path: Path) -> int:
        return spare.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        spare.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        while data:  # the kernel may return early, at 2 GiB or on a signal
            offset += len(data)
            length -= len(data)
            data = os.pread(fd, length, offset)
            pieces.append(data)
        return b"".join(pieces)

    def write(self, fd: int, buffers: Sequence[bytes], offset: int) -> None:
        total = sum(map(len, buffers))
        if total <= _JOINED_BYTES_MAX and total <= _JOINED_BUFFER_BYTES_MAX * len(buffers):
            _write_all(fd, b"".join(buffers), offset)
            return
        for i in range(0, len(buffers), _BUFFERS_MAX):
            some = buffers[i : i + _BUFFERS_MAX]
            length = sum(map(len, some))
            done = os.pwritev(fd, some, offset)
            if done < length:
                _write_all(fd, b"".join(some)[done:], offset + done)
            offset += length

    def allocate(self, fd: int, length: int) -> None:
        try:
            os.posix_fallocate(fd, 0, length)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def forget(self, fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_folder(self, path: Path) -> None:
        fd = spare.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            spare.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def is_at(self, fd: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            return os.fstat(fd).st_nlink > 0

    def random64(self) -> int:
        return int.from_bytes(os.urandom(8), "little")


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    if done == len(data):
        return
    view = memoryview(data)[done:]
    offset += done
    while view:
        done = os.pwrite(fd, view, offset)
        view = view[done:]
        offset += done
