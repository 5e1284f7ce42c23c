"""ABI 1: the exports that a module has, and the imports that it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.reducers.wasm.faults import Fault

if TYPE_CHECKING:
    from wasmtime import FuncType, Module

VERSION = 1
WASI = "wasi_snapshot_preview1"
Signature = tuple[tuple[str, ...], tuple[str, ...]]  # parameters, results

_RANGE: Signature = (("i32", "i32"), ())
_RANGE_TO_RANGE: Signature = (("i32", "i32"), ("i64",))
REQUIRED: dict[str, Signature] = {
    "polynya_abi": ((), ("i32",)),
    "alloc": (("i32",), ("i32",)),
    "restore": _RANGE,
    "apply": (("i32", "i32"), ("i32",)),
    "state": ((), ("i64",)),
}
OPTIONAL: dict[str, Signature] = {
    "migrate": _RANGE,
    "get": _RANGE_TO_RANGE,
    "decide": _RANGE_TO_RANGE,
    "polynya_content_type": ((), ("i64",)),
    "polynya_error": ((), ("i64",)),
    "_initialize": ((), ()),
}


def check(module: Module) -> None:
    """Raise Fault unless the module has the exports and no other imports."""
    from wasmtime import FuncType, MemoryType

    exports = {export.name: export.type for export in module.exports}
    if not isinstance(exports.get("memory"), MemoryType):
        raise Fault("MODULE", "the module exports no memory named memory")
    for name, wanted in (REQUIRED | OPTIONAL).items():
        found = exports.get(name)
        if found is None and name in OPTIONAL:
            continue
        if not isinstance(found, FuncType):
            raise Fault("MODULE", f"the module exports no function {name}{_text(wanted)}")
        if signature(found) != wanted:
            raise Fault(
                "MODULE",
                f"the module exports {name}{_text(signature(found))}, not {name}{_text(wanted)}",
            )
    for each in module.imports:
        if each.module != WASI or not isinstance(each.type, FuncType):
            raise Fault(
                "MODULE",
                f"the module imports {each.module}.{each.name}; it may import functions of"
                f" {WASI} alone",
            )


def signature(function: FuncType) -> Signature:
    return tuple(map(str, function.params)), tuple(map(str, function.results))


def _text(wanted: Signature) -> str:
    parameters, results = wanted
    return f"({', '.join(parameters)})" + (f" -> {', '.join(results)}" if results else "")
