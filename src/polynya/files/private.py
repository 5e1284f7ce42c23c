"""The rights of other users on what the product writes: none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
Refused = list[tuple[str, str]]  # path, reason


def keep_private() -> None:
    """Set the umask of this process, and of those that it starts, so that only its user may read what they write."""
    os.umask(UMASK)


def tighten(paths: Iterable[Path], *, deep: bool = True) -> Refused:
    """Take the rights of group and others away from files and folders, and with `deep` from all that is in these; what was refused.

    Links in a folder are not followed. What disappears meanwhile is not refused."""
    refused: Refused = []
    for path in paths:
        if deep and path.is_dir():
            for name, folder in _below(path, refused):
                _close(name, folder, refused)
        _close(str(path), None, refused)  # last: a folder that is closed is done
    return refused


def _below(folder: Path, refused: Refused) -> Iterator[tuple[str, int]]:
    """(path, descriptor of the folder that holds it) of everything in a folder."""

    def failed(error: OSError) -> None:
        _note(str(error.filename), error, refused)

    for root, folders, names, descriptor in os.fwalk(folder, topdown=False, onerror=failed):
        for name in (*folders, *names):
            yield os.path.join(root, name), descriptor


def _close(path: str, folder: int | None, refused: Refused) -> None:
    name = path if folder is None else os.path.basename(path)
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=folder is None).st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            os.chmod(name, stat.S_IMODE(mode) & ~_OTHERS, dir_fd=folder)
    except OSError as error:
        _note(path, error, refused)


def _note(path: str, error: OSError, refused: Refused) -> None:
    if not isinstance(error, FileNotFoundError):
        refused.append((path, error.strerror or type(error).__name__))
