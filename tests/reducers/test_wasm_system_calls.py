"""The filter of system calls, run as the kernel runs it."""

from __future__ import annotations

import errno
import struct

import pytest

from polynya.reducers.wasm.system_calls import _NUMBERS, NAMES, program

PID = 4711
ALLOWED, REFUSED = 0x7FFF0000, 0x00050000 | errno.EPERM
OTHERS = {  # open, openat, socket, connect, execve, kill, ptrace, clone, io_uring_setup
    "x86_64": (2, 257, 41, 42, 59, 62, 101, 56, 425),
    "aarch64": (56, 198, 203, 221, 129, 117, 220, 425),
}


def run(code: bytes, architecture: int, number: int, argument: int) -> int:
    """Return what the filter answers to a call."""
    data = struct.pack("<IIQQ", number, architecture, 0, argument)
    at = accumulator = 0
    while True:
        kind, if_true, if_false, operand = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if kind == 0x06:
            return int(operand)
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        else:
            assert kind == 0x15
            at += if_true if accumulator == operand else if_false


@pytest.mark.parametrize("name", _NUMBERS)
def test_it_allows_its_calls_alone(name: str) -> None:
    _, architecture, numbers = _NUMBERS[name]
    calls = {each: n for each, n in zip(NAMES, numbers, strict=True) if n >= 0}
    assert len(set(calls.values())) == len(calls)
    code = program(architecture, calls, PID)
    guarded = {calls["prlimit64"], calls["tgkill"]}
    for number in calls.values():
        assert run(code, architecture, number, PID) == ALLOWED
        answer = REFUSED if number in guarded else ALLOWED
        assert run(code, architecture, number, PID + 1) == answer
        assert run(code, architecture + 1, number, PID) == REFUSED
    assert run(code, architecture, calls["prlimit64"], 0) == ALLOWED
    for number in (*OTHERS[name], 0x40000000, 2**32 - 1):
        assert run(code, architecture, number, 0) == REFUSED
