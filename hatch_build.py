"""Puts the commit that a package is built from into it, as `polynya/commit.txt`, for `polynya
--version`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "polynya/commit.txt", "sdist": "src/polynya/commit.txt"}


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """`BUILD_COMMIT`, where there is no git; else the checkout's. A wheel that is built from an
    sdist finds the file already there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        commit = os.environ.get("BUILD_COMMIT", "").strip() or self._checked_out()
        if version == "editable" or not commit:
            return
        file, self._file = tempfile.mkstemp()
        with open(file, "w") as out:
            out.write(commit + "\n")
        os.chmod(self._file, 0o644)
        build_data["force_include"][self._file] = PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if file := getattr(self, "_file", ""):
            os.unlink(file)

    def _checked_out(self) -> str:
        sys.path.insert(0, os.path.join(self.root, "src"))
        from polynya.observability.build import checked_out

        return checked_out(Path(self.root))
