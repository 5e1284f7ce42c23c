"""Delete old backups of a repository: their files, and objects that no other backup needs."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.backup.manifest import Manifest, decode_rows, folder_of
from polynya.backup.repository import backups_on, parts_of
from polynya.objectstore import ObjectStore

DELETE_AT_ONCE = 1000
# a backup without a manifest and without writes for this time was interrupted
UNDER_WAY_MS = 86_400_000


async def prune(store: ObjectStore, keep: int) -> list[str]:
    """Delete all but the newest `keep` backups and return the deleted ids.

    Files that interrupted backups left before the oldest kept one are deleted too. While another
    backup is running, its files and all objects stay, because only it knows which objects it relies
    on. Raises CorruptData before any deletion if a kept backup cannot be read; StoreUnavailable.
    """
    backups = await backups_on(store)
    kept, gone = backups[-keep:], backups[:-keep]
    needed = await _needed(store, kept)
    running, files = await _running(store, backups)
    old = [key for key in files if key < folder_of(kept[0].id) and key.split("/")[1] not in running]
    # delete the manifest first: without it a backup does not count as complete
    old.sort(key=lambda key: not key.endswith("/manifest.json"))
    await _delete(store, old)
    if not running:
        useless = [info.key async for info in store.list("objects/") if info.key not in needed]
        if not (await _running(store, backups))[0]:  # no backup has started since
            await _delete(store, useless)
    return [manifest.id for manifest in gone]


async def _running(store: ObjectStore, backups: Iterable[Manifest]) -> tuple[set[str], list[str]]:
    """Return backups that may be running or finished after `backups` was listed, and the keys of
    all backup files."""
    last_ms: dict[str, int] = {}
    keys = []
    async for info in store.list("backups/"):
        backup = info.key.split("/")[1]
        last_ms[backup] = max(info.modified_ms, last_ms.get(backup, 0))
        keys.append(info.key)
    now_ms = max(last_ms.values(), default=0)  # by the repository's clock
    whole = {manifest.id for manifest in backups}
    return {
        backup
        for backup, ms in last_ms.items()
        if backup not in whole and ms > now_ms - UNDER_WAY_MS
    }, keys


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
