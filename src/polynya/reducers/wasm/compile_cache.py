"""Native code of modules, in a private folder of this machine.

Its names have the digest of the module and the version of wasmtime, which checks its own
configuration again. It never comes from the object store or from another node: native code is
trusted.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER_MODE = 0o700
FILES_MAX = 64  # the oldest go first


class CompileCache:
    """Keeps native code in `folder`, which is made; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def keeps(self) -> bool:
        return self._folder is not None

    def get(self, module: bytes) -> bytes:
        """Return the native code of the module, empty if it is not there."""
        if self._folder is None:
            return b""
        try:
            return (self._folder / self._name(module)).read_bytes()
        except OSError:
            return b""

    def put(self, module: bytes, native: bytes) -> None:
        """Keep the native code. A full disk is no failure: the module is compiled again."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            self._folder.chmod(FOLDER_MODE)
            self._drop_oldest(self._folder)
            handle, part = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(native)
            Path(part).replace(self._folder / self._name(module))
        except OSError:
            return

    def _name(self, module: bytes) -> str:
        try:
            found = version("wasmtime")
        except PackageNotFoundError:
            found = "none"
        return f"{hashlib.sha256(module).hexdigest()}-{found}.cwasm"

    def _drop_oldest(self, folder: Path) -> None:
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in files[: max(0, len(files) + 1 - FILES_MAX)]:
            file.unlink(missing_ok=True)
