"""The data folder's own files, also when its disk fails."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from polynya.node.folder import write_pid


def test_a_pid_file_is_there_while_the_node_runs(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        write_pid(str(tmp_path), held)
        assert (tmp_path / "node.pid").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "node.pid").exists()


def test_a_disk_that_fails_does_not_hide_why_the_node_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with contextlib.ExitStack() as held:
        write_pid(str(tmp_path), held)
        monkeypatch.setattr(Path, "unlink", unlink)
