"""The rights that a sandbox process gives up before it sees a module."""

from __future__ import annotations

import math
import os
import resource
import time

from polynya.reducers.wasm import system_calls

NICENESS = 5
_NO_NEW_PRIVILEGES = 38  # prctl(2)


def lock_down(data_bytes: int) -> None:
    """Give up files, sockets, core dumps and most memory, for good. The pipes stay open."""
    os.chdir("/")
    os.environ.clear()
    os.nice(NICENESS)
    _no_new_privileges()
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    # Not RLIMIT_AS: it counts the addresses that wasmtime reserves
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    system_calls.restrict()


def begin_compile(seconds: int) -> None:
    """Let the kernel end this process if compiling takes too long: nothing else can."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, hard))


def end_compile() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _no_new_privileges() -> None:
    import ctypes
    import sys

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
