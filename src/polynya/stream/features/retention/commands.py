"""Commands that delete old records, and set which ones are old: tags 6, 7, 11 and 81."""

from __future__ import annotations

import msgspec

from polynya.base.levels import RECORD_TIME_LEVEL, SNAPSHOTS_LEVEL
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import COUNTER, FROM_TAIL, TIME, WIDE, nested
from polynya.stream.parts import (
    Retention,
)


@command(
    since=1,
    bounds={"now_ms": TIME},
    rows=("cuts", (WIDE, FROM_TAIL, FROM_TAIL)),
    names=lambda command: command.names,
)
class Trim(Command, tag=6, frozen=True, gc=False):
    """Delete the records of some streams before a record boundary: `cuts` of (uid, record, byte). A
    boundary never moves back.

    The reply's detail has, for each cut, (first kept record, its byte, records and bytes deleted
    now). It has None if the stream or the boundary does not exist. `names` lists the streams whose
    state may be in the object store."""

    cuts: list[tuple[int, int, int]]
    now_ms: int
    names: list[str] = msgspec.field(default_factory=list)


def _level(command: SetRetention | BucketRetention) -> int:
    retention = command.retention
    return 1 if retention is None else level_of_retention(retention)


def level_of_retention(retention: Retention) -> int:
    """Return the feature level that a retention needs."""
    if retention.snapshots is not None:
        return SNAPSHOTS_LEVEL
    return RECORD_TIME_LEVEL if retention.by_record_time else 1


@command(
    since=1,
    bounds={"now_ms": TIME, "uid": WIDE},
    check=nested("retention"),
    level=_level,
    names=its_name,
)
class SetRetention(Command, tag=7, frozen=True, gc=False):
    """Set or (None) clear a stream's own retention policy. `uid` limits the command to one
    incarnation of the name; 0 matches any."""

    name: str
    retention: Retention | None
    now_ms: int
    uid: int = 0


@command(
    since=4,
    bounds={"uid": WIDE, "record": COUNTER, "byte": COUNTER, "now_ms": TIME},
    names=its_name,
)
class TrimTo(Command, tag=11, frozen=True, gc=False):
    """Delete the records of a stream before `record`, of which a Kafka batch may hold some: the
    batch stays stored, and readers leave out its records before `record`. Level 4.

    `byte`: where the batch of `record` begins; used only if the machine does not know it. The
    reply's detail is that of a `Trim` with one cut."""

    name: str
    uid: int
    record: int
    byte: int
    now_ms: int


@command(since=1, bounds={"now_ms": TIME}, check=nested("retention"), level=_level)
class BucketRetention(Command, tag=81, frozen=True, gc=False):
    """Set (None: clear) in the meta group the default retention of a bucket's streams."""

    bucket: str
    retention: Retention | None
    now_ms: int
