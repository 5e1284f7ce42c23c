"""The source of a backup: a cluster or a standalone node that serves the state of its groups and
its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError

PART_BYTES = 4 << 20  # bytes of one response


class Lost(PolynyaError):
    """The captured state is gone: the core that held it restarted, or no longer leads the group.
    Capture it again."""


class About(msgspec.Struct, frozen=True):
    """The identity of the cluster to back up. `store` tells if it has an object store."""

    cluster: str
    history: int
    groups: int
    release: str
    store: bool


class Captured(msgspec.Struct, frozen=True):
    """A captured group file. The group's leader holds it until all of it was fetched, or until no
    fetch came for a while."""

    group: int
    token: str
    size: int
    term: int
    index: int
    log_ms: int
    streams: int
    records: int
    hot_bytes: int


class GroupCommits(msgspec.Struct, frozen=True):
    """The transactions that a group coordinates, as a backup sees them."""

    group: int
    ids: int  # transactional ids
    deciding: list[str] = []  # some whose commit has not reached all participants
    backup: str = ""  # the round of a backup that counts, or holds, commits …
    commits: int = 0  # … and their number since it began


class BackupSource(Protocol):
    """The interface to the cluster. All methods raise Unavailable, or an error that makes a retry
    pointless."""

    async def about(self) -> About: ...

    async def capture(self, group: int, backup: str = "") -> Captured:
        """Capture a group. `backup`: the round in which all groups are captured together."""
        ...

    async def prepare(self, group: int, backup: str) -> None:
        """Encode a group for its capture in a round, which is short then."""
        ...

    async def commits(self, group: int, backup: str, hold_ms: int | None = None) -> GroupCommits:
        """Return the commits of a group. `hold_ms`: log first that this round holds them for so long;
        0: that it counts them, and holds none. If another round holds them, nothing changes."""
        ...

    async def part(self, captured: Captured, offset: int) -> bytes:
        """Return at most PART_BYTES of a captured file. Raises Lost."""
        ...

    def objects(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """Yield (key, size) of the objects below a folder of the store."""
        ...

    async def read(self, key: str, offset: int, length: int) -> bytes:
        """Read a range of an object. Raises NotFound."""
        ...
