"""The data folder's own files, also when its disk fails."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from polynya.base.errors import ConfigError
from polynya.system.data_dir import lock_folder, write_pid


def test_a_pid_file_is_there_while_the_node_runs(tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        write_pid(str(tmp_path), held)
        assert (tmp_path / "node.pid").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "node.pid").exists()


def test_a_disk_that_fails_does_not_hide_why_the_node_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with contextlib.ExitStack() as held:
        write_pid(str(tmp_path), held)
        monkeypatch.setattr(Path, "unlink", unlink)


@pytest.mark.parametrize(
    ("other", "said"),
    [(True, r"\(it belongs to .+, and this runs as user 4242424\)"), (False, "denied; choose")],
)
def test_a_folder_of_another_user_is_refused_with_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool, said: str
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    if other:
        monkeypatch.setattr(os, "geteuid", lambda: 4242424)
    with contextlib.ExitStack() as held, pytest.raises(ConfigError, match=said):
        lock_folder(str(tmp_path), held)
