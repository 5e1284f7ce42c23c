"""A core asks the kernel for whole turns, and its threads with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from missing import left_out

pytestmark = pytest.mark.process

ASKS = """
import os, threading
from polynya.system.scheduling import ask_for_whole_turns
{before}
ask_for_whole_turns()
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(os.sched_getscheduler(0), *seen)
"""


@pytest.mark.parametrize(
    ("before", "policy"),
    [("", 3), ("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))", 5)],
)
def test_a_core_is_scheduled_in_batches_unless_its_operator_chose_otherwise(
    before: str, policy: int
) -> None:
    """`SCHED_BATCH` is 3, `SCHED_IDLE` 5 (linux/sched.h)."""
    if sys.platform != "linux":
        left_out("other systems have no SCHED_BATCH")
    said = subprocess.run(
        [sys.executable, "-c", ASKS.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == [str(policy), str(policy)]
