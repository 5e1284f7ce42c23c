"""The heap of a core gives back what threads have freed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from missing import left_out
from product import environment

pytestmark = pytest.mark.process

CHURN = """
import ctypes, sys, threading
from polynya.system.malloc import keep_heap_small
if sys.argv[1] == "small":
    keep_heap_small()
import psutil

# also on a busy machine all hold their memory at once, each in an arena of its own
together = threading.Barrier(4)

def build() -> None:
    together.wait()
    for size in (16 << 20, 8 << 20, 24 << 20):
        bytes(size)
    held = [bytes(1000) * 300 for _ in range(100)]
    together.wait()
    del held

before = psutil.Process().memory_info().rss
for _ in range(4):
    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(psutil.Process().memory_info().rss - before >> 20)
"""


def churn(how: str) -> int:
    """The MiB that stay. A Spark session in this process has set MALLOC_ARENA_MAX."""
    env = {name: value for name, value in environment().items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", CHURN, how],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_what_threads_have_freed_goes_back() -> None:
    if sys.platform != "linux":
        left_out("only the GNU C library has these settings")
    assert churn("small") < 20
    assert churn("usual") > 20, "then this test proves nothing, and the setting is not needed"
