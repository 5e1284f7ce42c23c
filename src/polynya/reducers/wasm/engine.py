"""The configuration of wasmtime: deterministic, and without the proposals that a reducer does not
need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import MODULE_BYTES_MAX
from polynya.reducers.wasm import abi
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.limits import STACK_BYTES, TABLE_ELEMENTS_MAX, TABLES_MAX, Budget

if TYPE_CHECKING:
    from wasmtime import Engine, Module, Store

_OFF = (
    "wasm_threads",
    "wasm_relaxed_simd",
    "wasm_memory64",
    "wasm_multi_memory",
    "wasm_gc",
    "wasm_function_references",
    "wasm_exceptions",
    "wasm_stack_switching",
    "wasm_component_model",
    "wasm_custom_page_sizes",
    "wasm_wide_arithmetic",
    "shared_memory",
    "parallel_compilation",  # its CPU seconds are the limit, not the wall's
    "memory_init_cow",  # it needs a file
    "native_unwind_info",
)


def engine() -> Engine:
    from wasmtime import Config, Engine

    config = Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.cranelift_nan_canonicalization = True
    config.max_wasm_stack = STACK_BYTES
    for name in _OFF:
        setattr(config, name, False)
    return Engine(config)


def compiled(engine: Engine, module: bytes, native: bytes) -> Module:
    """Return the module, from its native code if that fits this version. Raises Fault."""
    from wasmtime import Module, WasmtimeError

    if native:
        try:
            return Module.deserialize(engine, native)
        except WasmtimeError:
            pass  # another version of wasmtime made it
    check_bytes(module)
    try:
        return Module(engine, module)
    except WasmtimeError as error:
        raise Fault("MODULE", _first_line(str(error))) from None


def check_bytes(module: bytes) -> None:
    """Raise Fault unless this may be a core module in its binary form."""
    if len(module) > MODULE_BYTES_MAX:
        raise Fault(
            "MODULE", f"the module has {len(module)} bytes; at most {MODULE_BYTES_MAX} are allowed"
        )
    if module[:4] != b"\0asm":
        raise Fault("MODULE", "this is not a WebAssembly module: it does not begin with \\0asm")
    if module[4:8] != b"\1\0\0\0":
        raise Fault(
            "MODULE",
            f"the module has the version {module[4:8].hex()}, a core module has 01000000; a"
            " component cannot be a reducer",
        )


def new_store(engine: Engine, budget: Budget) -> Store:
    from wasmtime import Store

    store = Store(engine)
    store.set_limits(
        memory_size=budget.memory_bytes,
        table_elements=TABLE_ELEMENTS_MAX,
        instances=1,
        tables=TABLES_MAX,
        memories=1,
    )
    return store


def load(engine: Engine, module: bytes, native: bytes) -> Module:
    """Return the module after every check that needs no instance. Raises Fault."""
    made = compiled(engine, module, native)
    abi.check(made)
    return made


def _first_line(text: str) -> str:
    """Return what wasmtime says, without its backtrace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines[1:] if line[:1].isdigit() or "offset" in line]
    return "; ".join([*lines[:1], *causes[-1:]])[:500]
