"""Zip files on the import path of a worker: read once, and again when they have changed."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from polynya.lakehouse.machine.zips import keep_zip_directories


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a zip file on the path, and restore Python's own method at the end."""
    path = tmp_path / "code.zip"
    _write(path, lake_zip_first="1", lake_zip_second="2")
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(
        zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches
    )
    return path


def _write(path: Path, **modules: str) -> None:
    fresh = path.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w") as file:
        for name, value in modules.items():
            file.writestr(f"{name}.py", f"VALUE = {value}\n")
    fresh.replace(path)


def test_a_directory_is_read_again_only_if_the_file_changed(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    original = zipimport.zipimporter.invalidate_caches

    def counted(self: zipimport.zipimporter) -> None:
        reads.append(self.archive)
        original(self)

    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", counted)
    assert importlib.import_module("lake_zip_first").VALUE == 1
    keep_zip_directories()
    keep_zip_directories()  # of the next task: nothing more is replaced
    reads.clear()
    for _ in range(3):
        importlib.invalidate_caches()
    assert reads == []
    assert importlib.import_module("lake_zip_second").VALUE == 2
    _write(archive, lake_zip_first="1", lake_zip_second="2", lake_zip_third="3")
    importlib.invalidate_caches()
    importlib.invalidate_caches()
    assert reads == [str(archive)]
    assert importlib.import_module("lake_zip_third").VALUE == 3
    for name in ("first", "second", "third"):
        sys.modules.pop(f"lake_zip_{name}")
