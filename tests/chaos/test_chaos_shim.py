"""The library that injects disk faults: where a process dies, and which of its writes survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from missing import left_out

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.shim import Orders, build  # noqa: E402  (not a part of the package)

pytestmark = pytest.mark.process

WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in range(4):
    os.pwrite(file, b"%d" % number * 100, number * 100)
    os.fdatasync(file)
os.pwritev(file, [b"v" * 50, b"w" * 50], 400)
os.fdatasync(file)
"""
BEFORE, MIDDLE, DONE = 1, 2, 3
WHOLE = b"".join(b"%d" % number * 100 for number in range(4)) + b"v" * 50 + b"w" * 50


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made, why = build(tmp_path)
    if made is None:
        left_out(why)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("at", "after", "left"),
    [
        (BEFORE, 0, 0),
        (MIDDLE, 0, 50),
        (DONE, 0, 100),
        (MIDDLE, 1, 100),  # an fsync has no half
        (BEFORE, 4, 200),
        (MIDDLE, 4, 250),
        (MIDDLE, 8, 450),
        (DONE, 8, 500),
    ],
)
def test_it_dies_where_it_is_told_to_and_once(
    library: Path, tmp_path: Path, at: int, after: int, left: int
) -> None:
    orders, written = Orders(tmp_path / "orders"), tmp_path / "written"
    environment = os.environ | orders.variables(library)
    orders.give(die_at=at, die_after=after)
    assert not orders.has_died
    ended = subprocess.run(
        [sys.executable, "-c", WRITER, str(written)], env=environment, check=False
    ).returncode
    assert ended == -9 and orders.has_died
    assert (written.read_bytes() if written.exists() else b"") == WHOLE[:left]
    subprocess.run([sys.executable, "-c", WRITER, str(written)], env=environment, check=True)
    assert written.read_bytes() == WHOLE


def test_all_kinds_of_writes_fail(library: Path, tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    environment = os.environ | orders.variables(library)
    for passed, left in ((3, 300), (4, 400)):
        written = tmp_path / f"written-{passed}"
        orders.give(write_error=5, write_after=passed)
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(written)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1 and "Errno 5" in done.stderr
        assert written.read_bytes() == WHOLE[:left]
