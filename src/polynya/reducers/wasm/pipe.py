"""The frames between a sandbox process and its parent.

A request is `verb u8, count u32, length u32, body`; a reply `status u8, fuel u64, CPU microseconds
u64, length u32, body`. Little endian.
"""

from __future__ import annotations

import enum
import os
import struct

import msgspec

from polynya.reducers.wasm.limits import COMPILED_BYTES_MAX, Budget

REQUEST = struct.Struct("<BII")
REPLY = struct.Struct("<BQQI")


class Verb(enum.IntEnum):
    LOAD = 1  # body: `Load`; of the reply: `Loaded`
    BEGIN = 2  # a new instance, which the others go to
    RESTORE = 3  # body: a state
    MIGRATE = 4  # body: the state of an older revision
    APPLY = 5  # count: records of the frame; body: the frame
    STATE = 6
    GET = 7  # body: a key
    LOG = 8  # the reply has what the instance wrote to its output


class Status(enum.IntEnum):
    OK = 0
    FAULT = 1  # body: `FaultReport`
    NOT_INSTALLED = 2


class Load(msgspec.Struct, frozen=True, array_like=True):
    """A module, and the native code that an earlier process made of it, or nothing."""

    module: bytes
    compiled: bytes
    keep: bool  # the reply shall have the native code
    cpu_seconds: int  # of compiling
    budget: Budget


class Loaded(msgspec.Struct, frozen=True, array_like=True):
    """The module is ready. `native` is empty unless it was asked for."""

    native: bytes
    content_type: str  # of its states


class FaultReport(msgspec.Struct, frozen=True, array_like=True):
    """A fault, as the sandbox process tells it."""

    kind: str
    reason: str


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything to a blocking pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_exactly(descriptor: int, length: int) -> bytes:
    """Read from a blocking pipe. Raises EOFError where it ends."""
    parts: list[bytes] = []
    while length:
        part = os.read(descriptor, min(length, COMPILED_BYTES_MAX))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
