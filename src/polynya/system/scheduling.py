"""The CPU scheduling policy of a core: woken processes do not preempt it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def ask_for_whole_turns() -> None:
    """Select `SCHED_BATCH` (sched(7)). Call it before threads start, since they inherit the policy.

    It does nothing outside Linux, when it is denied, or when another policy is already set. Where
    nodes and clients share CPUs, each incoming message wakes a process, which would preempt a core
    during its turn. CPU cache contents would be fetched twice, and turns would become smaller and
    more frequent."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
