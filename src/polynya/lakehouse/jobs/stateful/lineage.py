"""Tables that are derived from others: in which order a sync takes them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from polynya.base.transforms import BadTransform, parse_transform
from polynya.lakehouse.jobs.plan import TableRef


class Lineage:
    """The tables of a round, sources first. A table waits for its source, if that is in the round,
    too."""

    def __init__(
        self, known: Mapping[str, TableRef], names: Iterable[str], skip: Collection[str] = ()
    ) -> None:
        """Order the tables of these names, and their sources but those of `skip`."""
        by_uid = {table.uid: name for name, table in known.items()}
        self._sources = {name: by_uid.get(source_of(table), "") for name, table in known.items()}
        ordered = dict[str, threading.Event]()
        for name in names:
            for each in reversed(self._above(name)):
                if each not in skip:
                    ordered.setdefault(each, threading.Event())
        self._done = ordered
        self.names = list(ordered)

    def wait(self, name: str) -> None:
        """Wait until the source of a table was synced, or failed."""
        source = self._sources[name]
        if source in self._done:
            self._done[source].wait()

    def done(self, name: str) -> None:
        self._done[name].set()

    def _above(self, name: str) -> list[str]:
        """Return a table, its source, the source of that one and so on."""
        found: list[str] = []
        while name and name not in found:
            found.append(name)
            name = self._sources[name]
        return found


def source_of(table: TableRef) -> str:
    """Return the uid of the table whose rows a table is derived from; "" for none."""
    if not table.transform:
        return ""
    try:
        return parse_transform(table.transform).table
    except BadTransform:  # of a later release: its job says so
        return ""
