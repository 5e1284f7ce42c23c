"""How the kernel is to share its CPUs among the cores and others: a core is not interrupted for whatever wakes up."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def ask_for_whole_turns() -> None:
    """To be called before there are threads: they are scheduled in the same way. Linux only (`SCHED_BATCH` of sched(7)); elsewhere, where it
    is refused, and where whoever started the process has chosen another policy, nothing is done.

    Where nodes and their clients share CPUs, each message that arrives wakes somebody, who then takes the CPU from a core in the midst of its
    turn: what that had in the caches of the CPU is fetched twice, and turns are cut into more and smaller ones."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
