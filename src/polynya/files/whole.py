"""Atomic file replacement, and directories with durable entries."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def write_whole(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    prepare: Callable[[int], None] = lambda descriptor: None,
) -> None:
    """Replace or create a file durably: temporary file, fsync, rename, fsync of the directory.

    `mode` is subject to the umask. `prepare` gets the new file's descriptor before the rename.
    Raises OSError; the file is then unchanged, unless only the directory's fsync failed."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            prepare(descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a directory and its missing parents durably; an existing one stays as it is. `mode`
    applies to the last. Raises OSError."""
    path = path.absolute()
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a directory durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: OSError) -> bool:
    """Report whether the error means a full disk or quota."""
    return error.errno in _FULL
