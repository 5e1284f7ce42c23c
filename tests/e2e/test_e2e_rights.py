"""Permissions of files that a node or its tables' worker writes: other users can read none, under
any umask of the caller."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import JSON, World
from polling import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def readable(folder: Path) -> list[str]:
    """Return the paths that other users may read, write or enter. Files that vanish meanwhile are
    left out."""
    found = []
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found.append(f"{path.relative_to(folder)} {stat.filemode(mode)}")
    return found


def test_a_node_s_files_are_its_user_s_alone_and_older_ones_become_so(world: World) -> None:
    world.start("--cores", "1", "--tls-self")
    assert world.stop() == 0
    assert readable(world.data) == []
    world.start("--cores", "1")
    assert world.ask("PUT", "/v1/stream/s", b"[1]", **JSON).status == 201
    assert world.flush().status == 200
    packs = [
        path
        for path in (world.data / "objects").rglob("*")
        if "/packs/" in str(path) and path.is_file()
    ]
    assert packs and readable(world.data) == []
    world.kill_all()
    for path in (world.data, *world.data.rglob("*")):  # as an earlier release left them
        path.chmod(0o755 if path.is_dir() else 0o644)
    (world.data / "private.json").unlink()
    world.start("--cores", "1")
    wait_until(lambda: not readable(world.data), what="older files to be tightened")
    assert world.records("s") == [1]
