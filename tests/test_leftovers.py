"""A test run reports its leftovers and fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import NAME

pytestmark = pytest.mark.process
SOON = "import leftovers\nleftovers.GONE_SECONDS = 0.5\n"
LEAVES = """
import subprocess
def test_it():
    command = "sleep 600 > /dev/null 2>&1 & echo $!"
    subprocess.run(["sh", "-c", command], start_new_session=True, check=True, stdout=open("left", "wb"))
"""
ENDS = """
import subprocess
below = []
def test_it():
    below.append(subprocess.Popen(["sh", "-c", "sleep 1"]))
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_a_process_that_is_left_fails_the_run(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ran = run(tmp_path, LEAVES, *workers)
    left = int((tmp_path / "left").read_text())
    os.kill(left, signal.SIGKILL)
    assert ran.returncode == 1 and "1 passed" in ran.stdout
    assert f"left behind: {left} sleep 600" in ran.stdout


def test_what_ends_with_the_run_is_not_left(tmp_path: Path) -> None:
    ran = run(tmp_path, ENDS)
    assert ran.returncode == 0 and "left behind" not in ran.stdout, ran


def run(folder: Path, test: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(SOON)
    (folder / "test_one.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "leftovers", *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), NAME: ""},
        capture_output=True,
        text=True,
        check=False,
    )
