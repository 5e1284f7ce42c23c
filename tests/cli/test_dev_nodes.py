"""The processes of `cluster dev`: which end of one is a failed start."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from polynya.cli.cluster.dev_nodes import DevNode, has_failed, was_stopped

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("command", "number", "failed"),
    [
        ("exit 78", None, True),
        ("exit 0", None, False),
        ("kill -9 $$", None, False),
        ("exec sleep 60", signal.SIGTERM, False),
    ],
)
def test_a_node_that_is_killed_is_no_failed_start(
    tmp_path: Path, command: str, number: signal.Signals | None, failed: bool
) -> None:
    with subprocess.Popen(["sh", "-c", command]) as process:
        node = DevNode(1, tmp_path, "127.0.0.1", 1, process)
        if number is not None:
            assert not has_failed(node) and not was_stopped(node)
            process.send_signal(number)
        process.wait()
    assert (has_failed(node), was_stopped(node)) == (failed, not failed)
