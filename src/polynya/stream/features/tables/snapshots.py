"""The snapshots of tables that are kept: settings and tags, in the settings of the meta group.

A tag has the metadata files in which its snapshot was seen. They and all that they name stay, whatever
later jobs expire, so a tag races with no job.
"""

from __future__ import annotations

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.limits import TABLE_SNAPSHOTS_KEPT
from polynya.base.msgpack import UNREADABLE
from polynya.stream.features.settings.rules import values_of

SCOPE = "table-snapshots"  # in the meta group; by uid of the table


class Tag(msgspec.Struct, frozen=True):
    """A snapshot that is kept: its id, its job and time, and metadata files that have it and the
    dead letters of its time."""

    snapshot: str
    job: int
    time_ms: int
    iceberg: str  # URI
    iceberg_dlq: str = ""


class Kept(msgspec.Struct, frozen=True):
    """The snapshots that a table keeps: the last `count` ones, those that were current in the last `age_ms`,
    and those with tags."""

    count: int = TABLE_SNAPSHOTS_KEPT
    age_ms: int = 0
    tags: dict[str, Tag] = {}


def kept_in(settings: dict[str, bytes]) -> dict[int, Kept]:
    """Return what tables keep by uid; the others keep the default. Raises CorruptData."""
    try:
        return {
            int(uid): msgspec.json.decode(value, type=Kept)
            for uid, value in values_of(settings, SCOPE).items()
        }
    except UNREADABLE as fault:
        raise CorruptData(f"the settings of tables' snapshots cannot be read: {fault}") from None
