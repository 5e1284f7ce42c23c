"""The reducers that need no module, by their names."""

from __future__ import annotations

from polynya.reducers.count import Count
from polynya.reducers.latest import Latest
from polynya.reducers.merge_patch import MergePatch
from polynya.reducers.reducer import Reducer

LATEST, MERGE_PATCH, COUNT = "latest", "merge-patch", "count"
BUILTINS = (LATEST, MERGE_PATCH, COUNT)


def builtin(name: str, pointer: str = "") -> Reducer:
    """Return a builtin reducer by its name, before its first record. `pointer`: the JSON pointer of
    the keys of `latest`."""
    if name == LATEST:
        return Latest(pointer)
    return MergePatch() if name == MERGE_PATCH else Count()
