"""Keep the directories of zip files on the import path between the tasks of a Spark worker.

PySpark invalidates the import caches at each task, and Python then parses the directory of every
zip file on the path again: those of PySpark and of this package cost some 70 ms of CPU a task.
"""

from __future__ import annotations

import functools
import os
import sys
import zipimport

_Stamp = tuple[int, int, int]  # device's file number, time of change in ns, size in bytes
_stamps: dict[str, _Stamp | None] = {}  # by path of a zip file: as it was when it was read


def keep_zip_directories() -> None:
    """Read the directory of a zip file again only if the file has changed. Affects this process."""
    original = zipimport.zipimporter.invalidate_caches
    if hasattr(original, "__wrapped__"):
        return
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimport.zipimporter):
            _stamps[importer.archive] = _stamp(importer.archive)

    @functools.wraps(original)
    def invalidate_caches(self: zipimport.zipimporter) -> None:
        stamp = _stamp(self.archive)
        if stamp is None or _stamps.get(self.archive) != stamp:
            _stamps[self.archive] = stamp
            original(self)

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign]


def _stamp(path: str) -> _Stamp | None:
    """Return values that change with a file, or None without one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
