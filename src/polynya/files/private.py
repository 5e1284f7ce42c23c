"""The rights of other users on what the product writes: none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private() -> None:
    """Set the umask of this process, and of those that it starts, so that only its user may read what they write."""
    os.umask(UMASK)


def tighten(folders: Iterable[Path]) -> list[tuple[str, str]]:
    """Take the rights of group and others away from folders and all that is in them; (path, reason) of those where that failed.

    Links are not followed. What disappears meanwhile is no failure."""
    refused: list[tuple[str, str]] = []
    for folder in folders:
        for path, descriptor in _entries(folder, refused):
            _tighten(path, descriptor, refused)
    return refused


def _entries(folder: Path, refused: list[tuple[str, str]]) -> Iterator[tuple[str, int | None]]:
    """(path, descriptor of the open folder that holds it or None) of everything, the folder itself last: it is then known to be done."""
    if not folder.is_dir():
        return

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            refused.append((str(error.filename), error.strerror or type(error).__name__))

    for root, folders, names, descriptor in os.fwalk(folder, topdown=False, onerror=failed):
        for name in (*folders, *names):
            yield os.path.join(root, name), descriptor
    yield str(folder), None


def _tighten(path: str, descriptor: int | None, refused: list[tuple[str, str]]) -> None:
    name = path if descriptor is None else os.path.basename(path)
    try:
        mode = os.stat(name, dir_fd=descriptor, follow_symlinks=descriptor is None).st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            os.chmod(name, stat.S_IMODE(mode) & ~_OTHERS, dir_fd=descriptor)
    except FileNotFoundError:
        pass
    except OSError as error:
        refused.append((path, error.strerror or type(error).__name__))
