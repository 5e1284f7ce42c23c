"""The system calls that a sandbox process may make from now on: a filter of the Linux kernel.

It has what Python, malloc and wasmtime need to compute, wait, and read and write open pipes. Every
other call fails with EPERM: files, sockets, processes, signals to others, tracing. So code that
breaks out of wasmtime reaches nothing of the user it runs as. Other systems, and kernels without
the filter, have the limits of `lockdown.py` alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping

# from seccomp(2) and the headers filter and audit of Linux
_SET_FILTER, _ALL_THREADS = 1, 1
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16

# seccomp, architecture, and the numbers of the calls, in the order of NAMES
NAMES = (
    "read write readv writev close fstat lseek poll ppoll pselect6 mmap munmap mprotect mremap madvise brk futex "
    "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack clock_gettime clock_nanosleep nanosleep gettimeofday "
    "getpid getppid gettid getrusage prlimit64 getrandom sched_yield sched_getaffinity membarrier rseq "
    "set_robust_list restart_syscall tgkill exit exit_group"
).split()
_OF_ITSELF = ("prlimit64", "tgkill")  # their first argument is a process: none, or this one
_MISSING = -1  # a call that the architecture does not have
_NUMBERS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "x86_64": (317, 0xC000003E, (
        0, 1, 19, 20, 3, 5, 8, 7, 271, 270, 9, 11, 10, 25, 28, 12, 202,
        13, 14, 15, 131, 228, 230, 35, 96,
        39, 110, 186, 98, 302, 318, 24, 204, 324, 334,
        273, 219, 234, 60, 231,
    )),
    "aarch64": (277, 0xC00000B7, (
        63, 64, 65, 66, 57, 80, 62, _MISSING, 73, 72, 222, 215, 226, 216, 233, 214, 98,
        134, 135, 139, 132, 113, 115, 101, 169,
        172, 173, 178, 165, 261, 278, 124, 123, 283, 293,
        99, 128, 131, 93, 94,
    )),
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def restrict() -> bool:
    """Allow all threads of this process the calls of NAMES alone, for good. Returns False where
    that is not possible. The process must have given up new privileges."""
    found = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if found is None:
        return False
    seccomp, architecture, numbers = found
    calls = {name: each for name, each in zip(NAMES, numbers, strict=True) if each != _MISSING}
    code = program(architecture, calls, os.getpid())
    asked = _Program(len(code) // 8, code)
    call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(call(seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(asked)) == 0)


def program(architecture: int, calls: Mapping[str, int], pid: int) -> bytes:
    """Return the filter: instructions `code u16, jump if true u8, if false u8, operand u32`, whose
    jumps count from the next one."""
    free = [number for name, number in calls.items() if name not in _OF_ITSELF]
    guarded = [number for name, number in calls.items() if name in _OF_ITSELF]
    refuse = 3 + 4 * len(guarded) + len(free)  # places of the two ends
    allow = refuse + 1
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, refuse - 2, architecture),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number in guarded:
        index = len(steps)
        steps += [
            (_EQUAL, 0, 3, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, allow - index - 3, 0, 0),
            (_EQUAL, allow - index - 4, refuse - index - 4, pid),
        ]
    for number in free:
        steps.append((_EQUAL, allow - len(steps) - 1, 0, number))
    steps += [(_RETURN, 0, 0, _ERROR), (_RETURN, 0, 0, _ALLOW)]
    assert len(steps) == allow + 1
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
