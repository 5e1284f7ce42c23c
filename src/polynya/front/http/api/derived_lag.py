"""The lag of a derived table: records of its input after the places that its last job's result object
has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.names import spelled_name
from polynya.local.api import StreamInfo
from polynya.service.table_jobs import DERIVED_STREAMS_MAX
from polynya.service.tables import Tables
from polynya.stream.features.tables.state import Table

Places = Mapping[str, tuple[int, int]]  # by stream as in URLs: uid, next record


class _Result(msgspec.Struct, frozen=True):
    taken: dict[str, tuple[int, int]] = {}


class DerivedLag:
    """Measures derived tables. `read_object` reads an object of the store by its key."""

    def __init__(
        self, tables: Tables, read_object: Callable[[str], Awaitable[bytes]] | None
    ) -> None:
        self._tables = tables
        self._read_object = read_object
        self._known: dict[int, tuple[str, Places]] = {}  # by table, with the key of the result

    async def records(self, table: Table) -> int | None:
        """Return the records that no job of a derived table has transformed. None: it cannot be
        told now."""
        places = await self._places(table)
        if places is None:
            return None
        return records_after(places, await self._tables.covered(table, DERIVED_STREAMS_MAX))

    async def _places(self, table: Table) -> Places | None:
        """Return the places after the last job. The object is read once a job."""
        known = self._known.get(table.uid)
        if known is None or known[0] != table.result:
            known = table.result, {}
            if table.result:
                if self._read_object is None:
                    return None
                try:
                    data = await self._read_object(table.result)
                    known = table.result, msgspec.json.decode(data, type=_Result).taken
                except (PolynyaError, OSError, ValueError):
                    return None
            self._known[table.uid] = known
        return known[1]


def records_after(places: Places, streams: Sequence[StreamInfo]) -> int:
    """Return the number of retained records after their stream's place; all those of an incarnation
    that has none. Before its first job, a fork counts the records that it inherits."""
    total = 0
    for stream in streams:
        uid, place = places.get(spelled_name(stream.name), (0, 0))
        begin = place if uid == stream.uid else 0
        total += max(0, stream.record - max(begin, stream.first_record))
    return total
