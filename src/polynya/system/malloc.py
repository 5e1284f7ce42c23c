"""Tune the C library's malloc for a core, so that freed memory returns to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from polynya.base.limits import MIB

LARGE_BYTES = 1 * MIB  # larger blocks get their own mapping, which is unmapped when freed
KEEP_BYTES = 4 * MIB  # free memory kept at the end of the heap
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from malloc.h


def keep_heap_small() -> None:
    """Limit the memory that malloc keeps. Call it before threads start; it has an effect only with
    the GNU C library.

    By default glibc gives each thread an arena. When large blocks are freed it raises both
    thresholds, up to 32 and 64 MiB. Threads build and write packs from blocks of all sizes, so a
    core would keep about 50 MiB. One arena costs nothing here, as Python threads take turns
    anyway."""
    if sys.platform != "linux":
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
