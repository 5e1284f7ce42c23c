"""A real node under appends at full speed, with far smaller flushes than it should have: its
indexes stay short, and its objects few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from product import environment

pytestmark = pytest.mark.process
STREAMS = 50
ENTRIES_MAX = 64  # of a stream with less than a full slice or two


@pytest.mark.timeout(120)
@pytest.mark.long
def test_the_index_of_a_busy_node_stays_short() -> None:
    command = [
        sys.executable,
        "-m",
        "bench.memory",
        "--minutes",
        "0.5",
        "--every",
        "10",
        "--streams",
        str(STREAMS),
    ]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=environment(POLYNYA_COLD_FLUSH_BYTES="256KiB", POLYNYA_COLD_FLUSH_INTERVAL_MS="100"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    heading, *rows = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines()
    )
    assert len(rows) == 3, done.stdout
    last = dict(zip(heading, rows[-1], strict=True))
    assert float(last["written again"]) > 0.5, (
        "a node that merged nothing would prove nothing\n" + done.stdout
    )
    assert float(last["written again"]) < 4, done.stdout
    assert int(last["slices in the indexes"].replace(",", "")) <= STREAMS * ENTRIES_MAX, done.stdout
    assert int(last["objects"]) <= int(last["packs known"]) + 10, done.stdout
