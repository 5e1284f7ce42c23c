"""File permissions: other users get no access to files of the product."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
Refused = list[tuple[str, str]]  # path, reason


def keep_private() -> None:
    """Set the umask of this process and its children, so that only its user may read their
    files."""
    os.umask(UMASK)


def tighten(paths: Iterable[Path], *, deep: bool = True) -> Refused:
    """Remove group and other permissions from files and directories, with `deep` recursively.
    Returns the failures.

    Links in a directory are not followed. A file that disappears meanwhile is not a failure."""
    refused: Refused = []
    for path in paths:
        if deep and path.is_dir():
            for name, folder in _below(path, refused):
                _close(name, folder, refused)
        _close(str(path), None, refused)  # last: a closed directory marks a finished one
    return refused


def _below(folder: Path, refused: Refused) -> Iterator[tuple[str, int]]:
    """Yield (path, descriptor of the parent directory) for everything below a directory."""

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
