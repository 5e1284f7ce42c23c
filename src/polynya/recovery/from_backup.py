"""Restore from a backup: the states of the groups, and the objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from google_crc32c import value as crc32c

from polynya.backup.group_file import parse
from polynya.backup.manifest import CopiedObject, Manifest, decode_rows
from polynya.backup.progress import at_once, patiently
from polynya.backup.repository import RepositoryReader, parts_of
from polynya.base.errors import ConfigError, CorruptData
from polynya.objectstore import NotFound, ObjectStore, put_again
from polynya.recovery.restore import RestoredState, RestoreResult
from polynya.stream.snapshots.encode import decode_image


class FromBackup:
    """The states of a backup; implements `polynya.recovery.restore.States`."""

    def __init__(
        self,
        repository: RepositoryReader,
        manifest: Manifest,
        rename: Callable[[str], str],
        *,
        has_store: bool,
    ) -> None:
        if manifest.objects.count and not has_store:
            raise ConfigError(
                "cold.backend: the backup has objects, which need an object store; choose another "
                "backend"
            )
        self._repository, self._manifest, self._rename = repository, manifest, rename
        self.has_whole_transactions = manifest.whole_transactions is True

    async def state(self, group: int) -> RestoredState:
        entry = self._manifest.files[group]
        data = b"".join(
            [part async for part in parts_of(self._repository, entry.name, entry.size, entry.crc)]
        )
        try:
            file = await asyncio.to_thread(parse, data, group)
        except CorruptData as fault:
            raise CorruptData(f"{entry.name} is damaged: {fault}") from None
        header = file.header
        return RestoredState(decode_image(file.state), file.hot, header.log_ms, header.term)

    async def objects(self, store: ObjectStore, done: RestoreResult) -> None:
        entry = self._manifest.objects
        done.total, done.total_bytes = entry.count, entry.bytes
        async for part in parts_of(self._repository, entry.name, entry.size, entry.crc):
            todo = iter(decode_rows(part))

            async def work(todo: Iterator[CopiedObject] = todo) -> None:
                for row in todo:
                    await self._copy(store, row)
                    done.objects += 1
                    done.bytes += row.size

            await at_once(work)

    async def _copy(self, store: ObjectStore, row: CopiedObject) -> None:
        try:
            data = await self._repository.get(f"objects/{row.key}")
        except (NotFound, ValueError):
            raise CorruptData(f"objects/{row.key} is missing") from None
        if len(data) != row.size or crc32c(data) != row.crc:
            raise CorruptData(f"objects/{row.key} is damaged: its checksum is wrong")
        await patiently(lambda: put_again(store, self._rename(row.key), data))


def renaming(old: str, new: str) -> Callable[[str], str]:
    """Return a function that moves pack keys to the new cluster's prefix."""
    return lambda key: new + key.removeprefix(old) if key.startswith(f"{old}/") else key
