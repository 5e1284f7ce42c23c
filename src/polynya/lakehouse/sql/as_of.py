"""Earlier states of tables: the snapshots that a time, a snapshot's id or a tag names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.sql.policy import BadQuery

Read = Callable[[str], bytes]
"""Returns a metadata file by its URI."""

_SNAPSHOT_DIGITS_LEAST = 9  # shorter numbers are years
_CLOCKS = timedelta(seconds=30)  # by which the clocks of a reader and of a server may differ


class TableVersion(msgspec.Struct, frozen=True):
    """A state of a table, or of its dead letters: a metadata file by its URI, and the snapshot; ""
    for none: there were no rows."""

    pointer: str
    snapshot: str = ""


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int
    timestamp_ms: int = 0
    sequence_number: int = 0
    summary: dict[str, str] = {}

    @property
    def job(self) -> int:
        return int(self.summary.get("polynya.job", 0))


class _Metadata(msgspec.Struct, rename="kebab"):
    snapshots: list[_Snapshot] = []


def versions(read: Read, table: TableRef, as_of: str) -> tuple[TableVersion, TableVersion]:
    """Return the state of a table's rows and that of its dead letters. Raises BadQuery."""
    tag = table.tags.get(as_of)
    if tag is not None:
        rows = TableVersion(tag.iceberg, tag.snapshot)
        return rows, _dead(read, tag.iceberg_dlq, tag.job)
    known = _snapshots(read, table.iceberg)
    found = _chosen(known, table, as_of)
    return TableVersion(table.iceberg, str(found.snapshot_id)), _dead(
        read, table.iceberg_dlq, found.job
    )


def _chosen(known: list[_Snapshot], table: TableRef, as_of: str) -> _Snapshot:
    if as_of.isdecimal() and len(as_of) >= _SNAPSHOT_DIGITS_LEAST:
        found = [each for each in known if str(each.snapshot_id) == as_of]
    else:
        at = _time(as_of, table)
        found = [each for each in known if each.timestamp_ms <= at]
    if found:
        return found[-1]
    first = f"; the first one that is kept is of {_describe(known[0])}" if known else ""
    raise BadQuery(
        f"the table '{table.name}' keeps no snapshot as of '{as_of}'{first}: 'polynya table history "
        f"{table.name}' lists them"
    )


def _time(text: str, table: TableRef) -> int:
    """Return the milliseconds of an ISO time; without a zone it is in UTC. One in the future is
    refused: its state is not known yet."""
    try:
        at = datetime.fromisoformat(text)
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        tags = ", ".join(table.tags) or "none"
        raise BadQuery(
            f"'{text}' is no time (2026-01-31T09:30:00Z), no snapshot's id, and no tag of the table "
            f"'{table.name}'; its tags: {tags}"
        ) from None
    now = datetime.now(UTC)
    if at > now + _CLOCKS:
        raise BadQuery(
            f"'{text}' is in the future: it is {_spelled(at)} in UTC, and now is {_spelled(now)}; "
            "name a time up to now, or none for the newest state"
        )
    return int(at.timestamp() * 1000)


def _dead(read: Read, pointer: str, job: int) -> TableVersion:
    """Return the dead letters as they were when a job had committed."""
    if not pointer:
        return TableVersion("")
    found = [each for each in _snapshots(read, pointer) if each.job <= job]
    return TableVersion(pointer, str(found[-1].snapshot_id) if found else "")


def _snapshots(read: Read, pointer: str) -> list[_Snapshot]:
    """Return the snapshots of a metadata file, the oldest first."""
    try:
        found = msgspec.json.decode(read(pointer), type=_Metadata).snapshots
    except UNREADABLE as fault:
        raise BadQuery(f"the metadata {pointer} cannot be read: {fault}") from None
    return sorted(found, key=lambda each: each.sequence_number)


def _describe(snapshot: _Snapshot) -> str:
    return _spelled(datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC))


def _spelled(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
