"""Commands in forks end as those in processes of their own: exit codes, streams, environment,
folder, and time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from missing import left_out
from product import environment, polynya
from warm_commands import can_run, commands_of

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def forks() -> None:
    if not can_run((), {}):
        left_out("commands run in processes of their own here")


def ran(
    *arguments: str, stdin: bytes = b"", seconds: float = 30.0, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return commands_of(os.getpid()).run(arguments, environment(**variables), stdin, seconds)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--version",), 0),
        (("no-such-verb",), 2),
        (("ls", "--server", "http://127.0.0.1:1"), 3),
    ],
)
def test_a_fork_prints_and_ends_as_a_process_of_its_own(
    arguments: tuple[str, ...], code: int
) -> None:
    # what a Python reads at its start is not for a fork
    other = polynya(*arguments, PYTHONUTF8="1")
    assert not can_run(arguments, {"PYTHONUTF8": "1"})
    warm = ran(*arguments)
    assert (warm.returncode, warm.stdout.decode(), warm.stderr.decode()) == (
        other.code,
        other.out,
        other.err,
    )
    assert warm.returncode == code


def test_a_fork_has_its_own_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polynya.toml").write_text("cores = 3\n")
    shown = ran("config", "show", "--config", "polynya.toml", POLYNYA_GROUPS="7").stdout.decode()
    assert "3" in next(line for line in shown.splitlines() if line.startswith("cores"))
    assert "7" in next(line for line in shown.splitlines() if line.startswith("groups"))


def test_a_fork_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ran("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), seconds=2.0)
