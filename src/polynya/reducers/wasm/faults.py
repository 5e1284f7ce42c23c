"""The faults of a module: what it did, or how it is invalid."""

from __future__ import annotations

from typing import Literal, get_args

from polynya.reducers.reducer import ReducerFault

Kind = Literal[
    "MODULE", "COMPILE", "ABI", "TRAP", "FUEL", "MEMORY", "TIME", "STACK", "OUTPUT", "SANDBOX"
]
KINDS: frozenset[str] = frozenset(get_args(Kind))
"""MODULE: refused before it ran. COMPILE: compilation exceeded a limit. ABI: a result breaks the
ABI. TRAP: the module stopped itself. OUTPUT: its state is too large. SANDBOX: its process ended.
The others are the limit that was reached."""


class Fault(ReducerFault):
    """A module cannot go on. The instance is of no more use."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: Kind = kind
        self.reason = reason


class NotInstalled(ReducerFault):
    """The extra `wasm` is missing."""

    def __init__(self) -> None:
        super().__init__(
            "running a WebAssembly module needs the package wasmtime: install the extra"
            " 'polynya[wasm]', or wasmtime>=50,<51 itself"
        )
