"""The reducers of bindings, as a worker makes them. The sandbox of a module serves all its streams,
one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from polynya.base.limits import REDUCER_STATE_BYTES_MAX
from polynya.reducers.bindings import Binding
from polynya.reducers.builtins import builtin
from polynya.reducers.reducer import Record, Reducer, ReducerFault
from polynya.reducers.wasm.compile_cache import CompileCache
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.reducers.wasm.sandbox import Sandbox

_Key = tuple[str, int, int]  # the module, its memory and fuel
SANDBOXES_MAX = 8  # processes of a worker; the one that was used longest ago ends


class Lent:
    """A module's reducer, whose process outlives the run."""

    def __init__(self, reducer: ModuleReducer) -> None:
        self._reducer = reducer

    @property
    def content_type(self) -> str:
        return self._reducer.content_type

    def restore(self, state: bytes | None) -> None:
        self._reducer.restore(state)

    def migrate(self, state: bytes) -> None:
        self._reducer.migrate(state)

    def apply(self, records: Sequence[Record]) -> int:
        return self._reducer.apply(records)

    def state(self) -> bytes:
        return self._reducer.state()

    def get(self, key: bytes) -> bytes | None:
        return self._reducer.get(key)

    def close(self) -> None:
        """Keep the process for the next run."""


class Maker:
    """Makes reducers. `module_of` returns a module by the name of its reducer; `folder` keeps native
    code, None none."""

    def __init__(self, module_of: Callable[[str], bytes], folder: Path | None) -> None:
        self._module_of = module_of
        self._cache = CompileCache(folder)
        self._kept: dict[_Key, ModuleReducer] = {}

    def make(self, name: str, binding: Binding) -> Reducer:
        """Return the reducer of a binding. Raises `ReducerFault`."""
        if binding.builtin:
            return builtin(binding.builtin, binding.key)
        key = (binding.module, binding.memory, binding.fuel)
        kept = self._kept.pop(key, None) or self._begun(name, binding)
        self._kept[key] = kept
        while len(self._kept) > SANDBOXES_MAX:
            self._kept.pop(next(iter(self._kept))).close()
        return Lent(kept)

    def _begun(self, name: str, binding: Binding) -> ModuleReducer:
        module = self._module_of(name)
        if hashlib.sha256(module).hexdigest() != binding.module:
            raise ReducerFault(f"the module of '{name}' has another SHA-256 than its binding says")
        budget = Budget(binding.memory, binding.fuel, REDUCER_STATE_BYTES_MAX)
        return ModuleReducer(Sandbox(module, budget, self._cache))

    def close(self) -> None:
        """End all processes."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
