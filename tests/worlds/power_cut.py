"""Survival of small files after a power cut: only synced data, and only under names whose folder
was synced since."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest


class PowerCut:
    """A recorder of all changes below `folder` from its creation on; existing content counts as
    durable. For one process that writes no file in place."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._synced: set[tuple[int, int]] = set()
        self._names: dict[tuple[int, int], dict[str, int]] = {}
        for root, _, names in os.walk(folder):
            self._sync(os.stat(root), root)
            self._synced.update(_id(os.stat(os.path.join(root, name))) for name in names)
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            self._sync(os.fstat(descriptor), f"/proc/self/fd/{descriptor}")

        patch.setattr(os, "fsync", fsync)

    def happen(self) -> None:
        """Empty the files that were not synced, and remove the names that were not synced."""
        for root, folders, names in os.walk(self._folder):
            known = self._names.get(_id(os.stat(root)), {})
            for name in (*folders, *names):
                path = Path(root, name)
                found = path.stat()
                if known.get(name) != found.st_ino:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                elif path.is_file() and _id(found) not in self._synced:
                    os.truncate(path, 0)
            folders[:] = [name for name in folders if Path(root, name).exists()]

    def _sync(self, found: os.stat_result, path: str) -> None:
        self._synced.add(_id(found))
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                self._names[_id(found)] = {entry.name: entry.inode() for entry in entries}


def _id(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
