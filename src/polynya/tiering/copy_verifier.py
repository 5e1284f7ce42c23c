"""Verify the copies of groups' states and their deltas in the object store."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.backup import copies
from polynya.backup.group_file import parse
from polynya.base.errors import CorruptData
from polynya.cold.verifier import DAMAGED, Fault
from polynya.objectstore import NotFound, ObjectStore

NEEDED_BY = "(a restore from the object store alone)"


class CopyVerifier:
    """The verifier of a history's copies. `cluster_history` is (cluster, history)."""

    def __init__(self, store: ObjectStore, cluster_history: tuple[str, int]) -> None:
        self._store, self._cluster_history = store, cluster_history

    async def faults(self, groups: Iterable[int]) -> list[Fault]:
        """Return the damaged copies and deltas of these groups. Raises StoreUnavailable."""
        return [
            Fault(info.key, DAMAGED, [NEEDED_BY])
            for group in groups
            async for info in self._store.list(copies.folder_of(*self._cluster_history, group))
            if not await self._is_intact(info.key, group)
        ]

    async def _is_intact(self, key: str, group: int) -> bool:
        try:
            parse(await self._store.get(key), group)
        except NotFound:  # a newer copy has been stored
            return True
        except CorruptData:
            return False
        return True
