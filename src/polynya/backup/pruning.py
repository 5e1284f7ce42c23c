"""Old backups of a place go: their files, and the objects that only they needed."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.backup.manifest import Manifest, began_ms_of, decode_rows, folder_of, is_id
from polynya.backup.shelf import backups_on, parts_of
from polynya.objectstore import ObjectStore

DELETE_AT_ONCE = 1000
CLOCKS_MS = 600_000  # by which the clocks of a place, and of who takes backups, may differ


async def prune(store: ObjectStore, keep: int) -> list[str]:
    """The ids of those that went; also what interrupted ones before the kept ones have left. One that has no manifest and began later may be
    under way: what came since is left alone. Raises CorruptData before anything is deleted when a kept one cannot be read; StoreUnavailable."""
    backups = await backups_on(store)
    kept, gone = backups[-keep:], backups[:-keep]
    needed = await _needed(store, kept)
    oldest = folder_of(kept[0].id)
    listed = [info.key async for info in store.list("backups/")]
    old = [key for key in listed if key < oldest]
    old.sort(key=lambda key: not key.endswith("/manifest.json"))  # without its manifest it is none: then the rest may go
    begun = {key.split("/")[1] for key in listed if key > oldest} - {manifest.id for manifest in kept}
    since_ms = min((began_ms_of(backup) - CLOCKS_MS for backup in begun if is_id(backup)), default=None)
    await _delete(store, old)
    await _delete(
        store,
        [info.key async for info in store.list("objects/") if info.key not in needed and (since_ms is None or info.modified_ms < since_ms)],
    )
    return [manifest.id for manifest in gone]


async def _needed(store: ObjectStore, kept: Iterable[Manifest]) -> set[str]:
    needed: set[str] = set()
    for manifest in kept:
        entry = manifest.objects
        async for part in parts_of(store, entry.name, entry.size, entry.crc):
            needed.update(f"objects/{row.key}" for row in decode_rows(part))
    return needed


async def _delete(store: ObjectStore, keys: list[str]) -> None:
    for begin in range(0, len(keys), DELETE_AT_ONCE):
        await store.delete(keys[begin : begin + DELETE_AT_ONCE])
