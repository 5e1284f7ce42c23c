"""WASI preview 1 for the runtimes that import it: every answer is a constant or comes from the
record, so that a module cannot tell one run from another.

The clock stands at the time of the record, and a sleep is over at once. Random bytes are zeros,
output goes to a short log, and there are no files, arguments or variables.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from polynya.reducers.wasm import abi
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.limits import LOG_BYTES_MAX

if TYPE_CHECKING:
    from wasmtime import Caller, FuncType, Linker, Module

BADF, FAULT_OF_ADDRESS, INVALID = 8, 21, 28
VECTORS_MAX = 1024  # of one write or poll
CLOCK = "clock_time_get"
RESOLUTION_NS = 1_000_000
REALTIME = 0  # the clock; each other one stands still
MONOTONIC_NS = 1  # Go does not start at 0
_SUBSCRIPTION_BYTES, _EVENT_BYTES = 48, 32
_U32, _U64, _PAIR = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<II")


class OutOfMemory(Exception):
    """A pointer of the module points outside its memory."""


class Wasi:
    """The functions that a module may import, and the state behind them: the time and the log."""

    def __init__(self) -> None:
        self.time_ms = 0
        self.log = bytearray()

    def define(self, linker: Linker, module: Module) -> None:
        """Define each import of the module."""
        from wasmtime import FuncType

        # Go imports some twice; with another signature the instance is refused
        imports = {each.name or "": each.type for each in module.imports}
        for name, kind in imports.items():
            assert isinstance(kind, FuncType)  # `abi.check`
            linker.define_func(abi.WASI, name, kind, self._function(name, kind), access_caller=True)

    def _function(self, name: str, kind: FuncType) -> Callable[..., int | None]:
        parameters, results = abi.signature(kind)
        known = _KNOWN.get(name)
        if known and (parameters, results) == (known[0], ("i32",)):
            return lambda caller, *arguments: self._answer(known[1], caller, arguments)
        if results == ("i32",):
            return lambda *_: BADF

        def leave(_: Caller, *arguments: int) -> None:
            given = ", ".join(map(str, arguments))
            raise Fault("TRAP", f"the module called {name}({given}){self.log_text()}")

        return leave

    def _answer(
        self, function: Callable[..., int], caller: Caller, arguments: tuple[int, ...]
    ) -> int:
        try:
            return function(self, _Memory(caller), *arguments)
        except OutOfMemory:
            return FAULT_OF_ADDRESS

    def log_text(self) -> str:
        """Return the end of the log, for the reason of a fault."""
        text = self.log.decode(errors="replace").strip()
        return f"; its output: {text}" if text else ""

    def _nothing(self, memory: _Memory, count: int, size: int) -> int:
        memory.write(count, _U32.pack(0))
        memory.write(size, _U32.pack(0))
        return 0

    def _done(self, memory: _Memory, *_: int) -> int:
        return 0

    def _clock(self, memory: _Memory, clock: int, _precision: int, pointer: int) -> int:
        time_ns = self.time_ms * 1_000_000 if clock == REALTIME else MONOTONIC_NS
        memory.write(pointer, _U64.pack(time_ns % 2**64))
        return 0

    def _poll(self, memory: _Memory, waits: int, events: int, count: int, pointer: int) -> int:
        if not 0 < count <= VECTORS_MAX:
            return INVALID
        for each in range(count):  # an event begins with the number of its subscription
            number = memory.read(waits + _SUBSCRIPTION_BYTES * each, 8)
            memory.write(events + _EVENT_BYTES * each, number.ljust(_EVENT_BYTES, b"\0"))
        memory.write(pointer, _U32.pack(count))
        return 0

    def _resolution(self, memory: _Memory, _clock: int, pointer: int) -> int:
        memory.write(pointer, _U64.pack(RESOLUTION_NS))
        return 0

    def _random(self, memory: _Memory, pointer: int, length: int) -> int:
        memory.clear(pointer, length)
        return 0

    def _write(self, memory: _Memory, file: int, vectors: int, count: int, pointer: int) -> int:
        if file not in (1, 2):
            return BADF
        if not 0 <= count <= VECTORS_MAX:
            return INVALID
        written = 0
        for each in range(count):
            at, length = _PAIR.unpack(memory.read(vectors + 8 * each, 8))
            room = LOG_BYTES_MAX - len(self.log)
            self.log += memory.read(at, min(length, room))
            written += length
        memory.write(pointer, _U32.pack(written % 2**32))
        return 0


class _Memory:
    """The memory of the module that called, with every access checked."""

    def __init__(self, caller: Caller) -> None:
        from wasmtime import Memory

        memory = caller.get("memory")
        assert isinstance(memory, Memory)  # `abi.check`
        self._begin = ctypes.addressof(memory.data_ptr(caller).contents)
        self._size = memory.data_len(caller)

    def _at(self, pointer: int, length: int) -> int:
        pointer, length = pointer % 2**32, length % 2**32
        if pointer + length > self._size:
            raise OutOfMemory
        return self._begin + pointer

    def read(self, pointer: int, length: int) -> bytes:
        return ctypes.string_at(self._at(pointer, length), length)

    def write(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(self._at(pointer, len(data)), data, len(data))

    def clear(self, pointer: int, length: int) -> None:
        ctypes.memset(self._at(pointer, length), 0, length % 2**32)


_TWO = ("i32", "i32")
_KNOWN: dict[str, tuple[tuple[str, ...], Callable[..., int]]] = {
    "args_sizes_get": (_TWO, Wasi._nothing),
    "args_get": (_TWO, Wasi._done),
    "environ_sizes_get": (_TWO, Wasi._nothing),
    "environ_get": (_TWO, Wasi._done),
    "sched_yield": ((), Wasi._done),
    CLOCK: (("i32", "i64", "i32"), Wasi._clock),
    "clock_res_get": (_TWO, Wasi._resolution),
    "poll_oneoff": (("i32", "i32", "i32", "i32"), Wasi._poll),
    "random_get": (_TWO, Wasi._random),
    "fd_write": (("i32", "i32", "i32", "i32"), Wasi._write),
}
