"""The lag of a derived table: records of its input after the positions that its last job's result
object has, or rows of its source table that its next job transforms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.names import spelled_name
from polynya.base.transforms import parse_transform, source_table
from polynya.local.api import StreamInfo
from polynya.service.table_jobs import DERIVED_STREAMS_MAX
from polynya.service.tables import Tables
from polynya.stream.features.tables.state import Table

Positions = Mapping[str, tuple[int, int]]  # by stream as in URLs: uid, next record


class _Source(msgspec.Struct, frozen=True):
    job: int
    rows: int


class _Result(msgspec.Struct, frozen=True):
    taken: dict[str, tuple[int, int]] = {}
    source: _Source | None = None


class DerivedLag:
    """Measures derived tables. `read_object` reads an object of the store by its key."""

    def __init__(
        self, tables: Tables, read_object: Callable[[str], Awaitable[bytes]] | None
    ) -> None:
        self._tables = tables
        self._read_object = read_object
        self._known: dict[int, tuple[str, _Result]] = {}  # by table, with the key of the result

    async def records(self, table: Table) -> int | None:
        """Return the records, or rows of the source, that no job of a derived table has
        transformed. None: it cannot be told now."""
        last = await self._last(table)
        if last is None:
            return None
        if not source_table(table.transform):
            streams = await self._tables.covered(table, DERIVED_STREAMS_MAX)
            return records_after(last.taken, streams)
        source = await self._tables.source_of(table)
        if source is None or last.source is None:
            return source.rows if source is not None else None
        if last.source.job == source.committed:
            return 0
        whole = parse_transform(table.transform).whole
        return source.rows if whole else max(0, source.rows - last.source.rows)

    async def trimmed(self, table: Table) -> int | None:
        """Return the records that were trimmed after the positions of the last job. None: it cannot
        be told now."""
        last = await self._last(table)
        if last is None or source_table(table.transform):
            return None if last is None else 0
        return trimmed_after(last.taken, await self._tables.covered(table, DERIVED_STREAMS_MAX))

    async def is_current(self, table: Table) -> bool:
        """Report whether the last job of a derived table had all that its input has."""
        if not source_table(table.transform):
            return await self.records(table) == 0
        last, source = await self._last(table), await self._tables.source_of(table)
        position = 0 if last is None or last.source is None else last.source.job
        return source is not None and last is not None and position == source.committed

    async def _last(self, table: Table) -> _Result | None:
        """Return the positions after the last job. The object is read once a job."""
        known = self._known.get(table.uid)
        if known is None or known[0] != table.result:
            known = table.result, _Result()
            if table.result:
                if self._read_object is None:
                    return None
                try:
                    data = await self._read_object(table.result)
                    known = table.result, msgspec.json.decode(data, type=_Result)
                except (PolynyaError, OSError, ValueError):
                    return None
            self._known[table.uid] = known
        return known[1]


def records_after(positions: Positions, streams: Sequence[StreamInfo]) -> int:
    """Return the number of retained records after their stream's position; all those of an
    incarnation that has none. Before its first job, a fork counts the records that it inherits."""
    return sum(
        max(0, stream.record - max(_position(positions, stream), stream.first_record))
        for stream in streams
    )


def trimmed_after(positions: Positions, streams: Sequence[StreamInfo]) -> int:
    """Return the number of trimmed records after their stream's position."""
    return sum(max(0, stream.first_record - _position(positions, stream)) for stream in streams)


def _position(positions: Positions, stream: StreamInfo) -> int:
    uid, position = positions.get(spelled_name(stream.name), (0, 0))
    return position if uid == stream.uid else 0
