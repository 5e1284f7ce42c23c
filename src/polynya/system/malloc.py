"""The C library's heap of a core: what is freed goes back to the system, so that memory stays where the bounds say."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from polynya.base.limits import MIB

LARGE_BYTES = 1 * MIB  # from here on a block is a mapping of its own, gone when it is freed
KEEP_BYTES = 4 * MIB  # free memory that is kept at the end of the heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def keep_heap_small() -> None:
    """To be called before there are threads. Only the GNU C library has these settings; elsewhere nothing is done.

    By itself it gives each thread an arena, and raises both thresholds up to 32 and 64 MiB when large blocks are freed: packs are built
    and written by threads, from blocks of all sizes, and a core would keep some 50 MiB of them for ever. One arena costs nothing here,
    as threads that run Python take turns anyway."""
    if sys.platform != "linux":
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
