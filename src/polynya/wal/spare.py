"""Reserved file descriptors. When the process runs out of descriptors, a journal can still open its
next segment."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

COUNT = 8
_NONE_LEFT = frozenset((errno.EMFILE, errno.ENFILE))


class Spare:
    """The reserve of all journals of a process. Thread-safe."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._wanted = False
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Reserve as many descriptors as possible, up to `COUNT`."""
        self._wanted = True
        with self._lock, suppress(OSError):
            while len(self._held) < COUNT:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Call `os.open`; release a reserved descriptor if none is left."""
        while True:
            try:
                return os.open(path, flags, mode)
            except OSError as error:
                if error.errno not in _NONE_LEFT or not self._give():
                    raise

    def close(self, fd: int) -> None:
        """Call `os.close`, and refill the reserve."""
        os.close(fd)
        if self._wanted and len(self._held) < COUNT:
            self.fill()

    def _give(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True
