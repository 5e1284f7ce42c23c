"""Change which snapshots of tables are kept, and name some by tags."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec

from polynya.base.limits import (
    TABLE_SNAPSHOT_AGE_MS_MAX,
    TABLE_SNAPSHOTS_KEPT_MAX,
    TABLE_TAGS_MAX,
)
from polynya.service.node_service import NodeService
from polynya.service.tables import TableRefused
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import version_of
from polynya.stream.features.tables.snapshots import SCOPE, Kept, Tag, kept_in
from polynya.stream.features.tables.state import Table
from polynya.stream.replies import Code

ATTEMPTS = 8  # optimistic retries against concurrent changes
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


class TableSnapshots:
    """The snapshots that tables keep, as one core sees them."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._changing = asyncio.Lock()  # changes of this core do not conflict with each other

    async def all(self) -> dict[int, Kept]:
        """Return what tables keep by uid."""
        return kept_in(await self._service.meta_group.entries(SCOPE))

    async def of(self, table: Table) -> Kept:
        return (await self.all()).get(table.uid, Kept())

    async def keep(self, table: Table, count: int | None, age_ms: int | None) -> Kept:
        """Set how many snapshots are kept, and for how long; None: as before. Raises
        TableRefused."""
        check_kept(count, age_ms)

        def changed(kept: Kept) -> Kept:
            return msgspec.structs.replace(
                kept,
                count=kept.count if count is None else count,
                age_ms=kept.age_ms if age_ms is None else age_ms,
            )

        return await self._change(table, changed)

    async def tag(self, table: Table, name: str, tag: Tag) -> Kept:
        """Name a snapshot. Raises TableRefused."""
        if not _TAG.fullmatch(name):
            raise TableRefused(
                400,
                "TABLE_TAG",
                f"'{name}' is not a valid tag: use at most 64 letters, digits, '_', '.' and '-', "
                "and begin with a letter",
            )

        def changed(kept: Kept) -> Kept:
            there = kept.tags.get(name)
            if there is not None and there.snapshot != tag.snapshot:
                raise TableRefused(
                    409,
                    "TABLE_TAG",
                    f"the tag '{name}' names snapshot {there.snapshot}; remove it first: polynya "
                    f"table untag {table.name} {name}",
                )
            if there is None and len(kept.tags) >= TABLE_TAGS_MAX:
                raise TableRefused(
                    409, "TABLE_TAG", f"the table has {TABLE_TAGS_MAX} tags; remove one first"
                )
            return kept if there else msgspec.structs.replace(kept, tags={**kept.tags, name: tag})

        return await self._change(table, changed)

    async def untag(self, table: Table, name: str) -> Kept:
        """Remove a tag. Raises TableRefused."""

        def changed(kept: Kept) -> Kept:
            if name not in kept.tags:
                raise TableRefused(404, "TABLE_TAG", f"table '{table.name}' has no tag '{name}'")
            left = {key: tag for key, tag in kept.tags.items() if key != name}
            return msgspec.structs.replace(kept, tags=left)

        return await self._change(table, changed)

    async def _change(self, table: Table, change: Callable[[Kept], Kept]) -> Kept:
        """Change what a table keeps, and forget what dropped tables kept."""
        async with self._changing:
            for _ in range(ATTEMPTS):
                settings = await self._service.meta_group.entries(SCOPE)
                known = kept_in(settings)
                live = {each.uid for each in await self._service.meta_group.tables()}
                wanted = change(known.get(table.uid, Kept()))
                changes: list[tuple[str, bytes | None]] = [
                    (str(uid), None) for uid in known if uid not in live
                ]
                changes.append((str(table.uid), msgspec.json.encode(wanted)))
                command = MetaChange(SCOPE, version_of(settings, SCOPE), changes)
                if (await self._service.meta_group.call(command)).code == Code.OK:
                    return wanted
        raise TableRefused(409, "JOB_CONFLICT", "the table's snapshots are being changed; retry")


def check_kept(count: int | None, age_ms: int | None) -> None:
    """Raise TableRefused for numbers of snapshots or times that cannot be kept."""
    if count is not None and not 1 <= count <= TABLE_SNAPSHOTS_KEPT_MAX:
        raise TableRefused(
            400,
            "TABLE_SNAPSHOTS",
            f"{count} snapshots cannot be kept; expected 1 to {TABLE_SNAPSHOTS_KEPT_MAX}",
        )
    if age_ms is not None and not 0 <= age_ms <= TABLE_SNAPSHOT_AGE_MS_MAX:
        raise TableRefused(
            400,
            "TABLE_SNAPSHOTS",
            f"snapshots cannot be kept for {age_ms} ms; expected 0 to {TABLE_SNAPSHOT_AGE_MS_MAX} "
            "(a year)",
        )
