"""An instance of a module: the state of one stream, behind the calls of ABI 1."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polynya.base.limits import MIB
from polynya.reducers.wasm import abi
from polynya.reducers.wasm.engine import new_store
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.limits import MESSAGE_BYTES_MAX, STACK_BYTES, TABLE_ELEMENTS_MAX, Budget
from polynya.reducers.wasm.records import split
from polynya.reducers.wasm.timer import CallTimer
from polynya.reducers.wasm.wasi import CLOCK, Wasi

if TYPE_CHECKING:
    from wasmtime import Engine, Func, Memory, Module, Trap

_U32 = 2**32
OCTETS = "application/octet-stream"
_CONTENT_TYPE = re.compile(rb"[!-~]{1,64}/[ -~]{1,128}")


class Instance:
    """Runs the calls of one stream, each within the budget. After a Fault it is of no more use."""

    def __init__(self, engine: Engine, module: Module, budget: Budget, timer: CallTimer) -> None:
        from wasmtime import Linker

        self.fuel_used = 0
        self._budget, self._timer = budget, timer
        self._store = new_store(engine, budget)
        self._wasi = Wasi()
        self._memory: Memory | None = None
        self._one_by_one = any(each.name == CLOCK for each in module.imports)
        linker = Linker(engine)
        self._wasi.define(linker, module)
        with self._limited(0):
            exports = linker.instantiate(self._store, module).exports(self._store)
        self._exports: dict[str, Any] = {
            name: exports[name] for name in abi.REQUIRED | abi.OPTIONAL if name in exports
        }
        self._memory = exports["memory"]  # type: ignore[assignment]
        with self._limited(0):
            self._begin()

    def _begin(self) -> None:
        if "_initialize" in self._exports:
            self._function("_initialize")(self._store)
        version = self._function("polynya_abi")(self._store)
        if version != abi.VERSION:
            raise Fault(
                "ABI",
                f"the module has ABI {version}; this release runs ABI {abi.VERSION}",
            )

    @property
    def log(self) -> bytes:
        return bytes(self._wasi.log)

    def restore(self, state: bytes) -> None:
        """Begin at a state that `state` returned."""
        with self._limited(len(state)):
            self._function("restore")(self._store, *self._place(state))

    def migrate(self, state: bytes) -> None:
        """Begin at a state of an older revision."""
        with self._limited(len(state)):
            self._function("migrate")(self._store, *self._place(state))

    def apply(self, frame: bytes, count: int) -> None:
        """Apply a frame of `count` records. A fault names them."""
        try:
            with self._limited(len(frame)):
                if not self._one_by_one:
                    self._apply(frame, count)
                    return
                for time_ms, single in split(frame):  # it can ask for the time
                    self._wasi.time_ms = time_ms
                    self._apply(single, 1)
        except Fault as fault:
            first = int.from_bytes(frame[:8], "little")
            raise Fault(
                fault.kind, f"{fault.reason}, in the batch that begins at record {first}"
            ) from None

    def _apply(self, frame: bytes, count: int) -> None:
        applied = self._function("apply")(self._store, *self._place(frame)) % _U32
        if applied != count:
            raise Fault("ABI", f"apply returned {applied} for {count} records")

    def state(self) -> bytes:
        """Return the state after the records so far."""
        with self._limited(self._size()):
            return self._read("state", self._function("state")(self._store))

    def get(self, key: bytes) -> bytes:
        """Return the value of a key of the state."""
        with self._limited(len(key) + self._size()):
            return self._read("get", self._function("get")(self._store, *self._place(key)))

    def content_type(self) -> str:
        """Return the content type of its states."""
        if "polynya_content_type" not in self._exports:
            return OCTETS
        with self._limited(0):
            found = self._read(
                "polynya_content_type", self._function("polynya_content_type")(self._store)
            )
        if not _CONTENT_TYPE.fullmatch(found):
            raise Fault("ABI", f"polynya_content_type returned {found[:64]!r}")
        return found.decode()

    def _function(self, name: str) -> Func:
        found = self._exports.get(name)
        if found is None:
            raise Fault("ABI", f"the module does not export {name}")
        return found  # type: ignore[no-any-return]

    def _size(self) -> int:
        return self._memory.data_len(self._store) if self._memory else 0

    def _address(self, what: str, pointer: int, length: int) -> int:
        """Return the address of a range that the module named, after checking it."""
        assert self._memory is not None
        size = self._size()
        if pointer + length > size:
            raise Fault(
                "ABI",
                f"{what} returned {pointer} for {length} bytes, which is outside the memory of"
                f" {size} bytes",
            )
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + pointer

    def _place(self, data: bytes) -> tuple[int, int]:
        """Copy the input into memory that the module allocates."""
        pointer = self._function("alloc")(self._store, len(data)) % _U32
        address = self._address("alloc", pointer, len(data))
        if not pointer and data:
            raise Fault("MEMORY", f"alloc returned 0 for {len(data)} bytes{self._used()}")
        ctypes.memmove(address, data, len(data))
        return pointer, len(data)

    def _read(self, what: str, packed: int) -> bytes:
        """Read the range `pointer << 32 | length`."""
        pointer, length = packed % 2**64 >> 32, packed % _U32
        if length > self._budget.state_bytes:
            raise Fault(
                "OUTPUT",
                f"{what} returned {length} bytes; at most {self._budget.state_bytes} are allowed",
            )
        return ctypes.string_at(self._address(what, pointer, length), length)

    @contextmanager
    def _limited(self, length: int) -> Iterator[None]:
        """Give a call the fuel for so many bytes, and its time; a trap becomes a Fault."""
        from wasmtime import Trap, WasmtimeError

        given = self._budget.fuel(length)
        self._store.set_fuel(given)
        self._store.set_epoch_deadline(1)
        try:
            with self._timer.limit(self._budget.cpu_seconds):
                yield
        except Trap as trap:
            raise self._fault(trap, given) from None
        except WasmtimeError as error:
            raise _refused(str(error)) from None
        finally:
            self.fuel_used += given - self._store.get_fuel()

    def _fault(self, trap: Trap, given: int) -> Fault:
        from wasmtime import TrapCode

        code = trap.trap_code
        if code is TrapCode.OUT_OF_FUEL:
            return Fault("FUEL", f"the call used its fuel of {given}")
        if code is TrapCode.INTERRUPT:
            return Fault(
                "TIME", f"the call took more than {self._budget.cpu_seconds:g} CPU seconds"
            )
        if code is TrapCode.STACK_OVERFLOW:
            return Fault("STACK", f"the call needs a stack of more than {STACK_BYTES} bytes")
        said = self._message() or _first(trap.message)
        # A failed memory.grow is no trap: the module's allocator then stops it
        full = self._size() > self._budget.memory_bytes // 2 and code is TrapCode.UNREACHABLE
        return Fault("MEMORY" if full else "TRAP", f"{said}{self._used()}{self._wasi.log_text()}")

    def _used(self) -> str:
        return f" ({self._size() / MIB:.1f} of {self._budget.memory_bytes / MIB:.1f} MiB of memory)"

    def _message(self) -> str:
        """Return the reason that the module kept, if it exports polynya_error."""
        from wasmtime import Trap, WasmtimeError

        function = self._exports.get("polynya_error") if self._memory else None
        if function is None:
            return ""
        self._store.set_fuel(self._budget.fuel(0))
        self._store.set_epoch_deadline(1)
        try:
            with self._timer.limit(self._budget.cpu_seconds):
                packed = function(self._store)
            length = min(packed % _U32, MESSAGE_BYTES_MAX)
            address = self._address("polynya_error", packed % 2**64 >> 32, length)
        except (Trap, WasmtimeError, Fault):
            return ""
        return ctypes.string_at(address, length).decode(errors="replace").strip()


def _refused(text: str) -> Fault:
    """Return the fault of an instance that could not be made."""
    reason = " ".join(text.split())[:500]
    if "table" in reason and "limit" in reason:
        return Fault("MODULE", f"{reason}; at most {TABLE_ELEMENTS_MAX} elements are allowed")
    return Fault("MEMORY" if "memory" in reason else "MODULE", reason)


def _first(message: str) -> str:
    """Return the trap without its backtrace."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    last = lines[-1] if lines else "trap"
    return re.sub(r"^(\d+: )?(wasm trap: )?", "", last)[:500]
