"""The network of the nodes: who joins later does not cut off those that are there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from missing import left_out

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos import network  # noqa: E402  (not a part of the package)

pytestmark = pytest.mark.process


def test_the_bridge_keeps_its_address_when_nodes_join() -> None:
    """Else all nodes lose it for as long as they remember the old one: up to 45 s."""
    lacking = network.why_not()
    if lacking:
        left_out(lacking)
    made = network.Namespaces([1], f"pch{os.getpid()}t")
    try:
        made.start()
        address = Path(f"/sys/class/net/{made.name}/address")
        seen = {address.read_text()}
        for node in range(2, 9):
            made.add(node)
            seen.add(address.read_text())
    finally:
        made.close()
    assert len(seen) == 1
