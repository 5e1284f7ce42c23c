"""The network of the nodes: a later node does not cut off the others, and programs outside the run
see none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from missing import left_out

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos import network  # noqa: E402  (not a part of the package)

pytestmark = pytest.mark.process
Got = TypeVar("Got")


def in_a_thread(work: Callable[[], Got]) -> Got:
    """Run `work` in an isolated thread and return its result."""
    with ThreadPoolExecutor(1, initializer=network.isolate) as thread:
        return thread.submit(work).result()


def interfaces() -> dict[str, str]:
    """The address of each interface that this thread sees."""
    listed = json.loads(subprocess.check_output(["ip", "-json", "link"]))
    return {each["ifname"]: each["address"] for each in listed}


def test_the_bridge_keeps_its_address_when_nodes_join() -> None:
    """Keep the address: otherwise the nodes lose the bridge for up to 45 s, until their caches
    expire. A browser outside the run also aborts requests when an interface changes."""
    lacking = in_a_thread(network.why_not)
    if lacking:
        left_out(lacking)
    made = network.Namespaces([1], f"pch{os.getpid()}t")

    def addresses() -> set[str]:
        made.start()
        seen = {interfaces()[made.name]}
        for node in range(2, 9):
            made.add(node)
            seen.add(interfaces()[made.name])
        assert made.name not in outside.submit(interfaces).result()
        return seen

    with ThreadPoolExecutor(1) as outside:
        outside.submit(interfaces).result()  # a thread is in the namespace of who starts it
        try:
            assert len(in_a_thread(addresses)) == 1
        finally:
            made.close()
