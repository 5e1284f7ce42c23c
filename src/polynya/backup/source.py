"""What a backup is taken from: a cluster, or a node by itself, that is asked for the state of its groups and for its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError

PART_BYTES = 4 << 20  # of one answer


class Lost(PolynyaError):
    """What was captured is not there any more: the core that held it was restarted, or leads the group no more. Capture it again."""


class About(msgspec.Struct, frozen=True):
    """Whose backup it is. `store`: whether there is an object store."""

    cluster: str
    history: int
    groups: int
    release: str
    store: bool


class Captured(msgspec.Struct, frozen=True):
    """The file of a group, held where the group is led until all of it was fetched, or nobody has asked for a while."""

    group: int
    token: str
    size: int
    term: int
    index: int
    log_ms: int
    streams: int
    records: int
    hot_bytes: int


class BackupSource(Protocol):
    """All raise Unavailable, or what means that asking makes no sense."""

    async def about(self) -> About: ...

    async def capture(self, group: int) -> Captured: ...

    async def part(self, captured: Captured, offset: int) -> bytes:
        """At most PART_BYTES. Raises Lost."""
        ...

    def objects(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """(key, size) of the objects below a folder of the store."""
        ...

    async def read(self, key: str, offset: int, length: int) -> bytes:
        """Raises NotFound."""
        ...
