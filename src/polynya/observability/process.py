"""Samples about this process."""

from __future__ import annotations

import gc
import os
import resource
import time

from polynya.observability.metrics import Samples

_STARTED = time.time()


def process_samples() -> Samples:
    """Return samples about this process from the operating system and the interpreter."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    samples: Samples = {
        "polynya_process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "polynya_gc_collections_total": gc.get_stats()[2]["collections"],
        "polynya_core_start_seconds": round(_STARTED, 3),
    }
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm", encoding="ascii") as file:
            samples["polynya_process_resident_bytes"] = (
                int(file.read().split()[1]) * resource.getpagesize()
            )
        samples["polynya_process_open_files"] = len(os.listdir("/proc/self/fd"))
    return samples
