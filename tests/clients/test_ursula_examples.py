"""The client examples of Ursula's documentation, request by request, against a node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from node_js import environment, node
from worlds.steady_node import steady_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).with_name("ursula_examples.mjs")


def test_they_run_as_they_are(tmp_path: Path) -> None:
    with steady_node(tmp_path / "data") as server:
        ran = subprocess.run(
            [node(), str(EXAMPLES), server.url],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.split() == [
        "clients",
        "resumableAiStream",
        "chatRoom",
        "browserTelemetry",
        "indexer",
    ]
