"""Changes of a table as a whole: its name and options, its end, and what a drop leaves to clean up.

A dropped table stays in the meta group until every group has forgotten it and its files are
deleted, but no command finds it. A stream group keeps the uid for good, in place of the last job
that claimed: so no claim of a late planner is made again, and claims in evicted states are dropped
when they return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.transforms import source_table
from polynya.stream.command import applies, level_of
from polynya.stream.features.tables.commands import ForgetTable, TableAlter, TableDrop
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.features.tables.state import Table
    from polynya.stream.machine import Machine
    from polynya.stream.state.model import Stream

FORGOTTEN = 1 << 62  # in `claimed_jobs`: later than every job


def live_tables(machine: Machine) -> list[Table]:
    """Return the tables that are not dropped."""
    return [table for table in machine.meta.tables.values() if not table.dropped_ms]


def live_table(machine: Machine, uid: int) -> Table | None:
    """Return a table by its uid, or None if there is none or it was dropped."""
    table = machine.meta.tables.get(uid)
    return None if table is None or table.dropped_ms else table


@applies(TableAlter)
def apply_alter(machine: Machine, command: TableAlter, position: int) -> Reply:
    """Set a table's name and options. EXISTS_DIFFERENT: another table has the name. Detail: the
    table, or that other one."""
    machine.counters.raise_level(level_of(TableAlter))  # see `apply_evict`
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    for other in live_tables(machine):
        if other is not table and other.name == command.name:
            return Reply(Code.EXISTS_DIFFERENT, other.uid, detail=other)
    table.name, table.hold, table.columns = command.name, command.hold, command.columns
    return Reply(Code.OK, table.uid, detail=table)


@applies(TableDrop)
def apply_drop(machine: Machine, command: TableDrop, position: int) -> Reply:
    """Drop a table. NOT_FOUND: there is none, or it was dropped. REFUSED: tables are derived from
    it. Detail: their names, or the table."""
    machine.counters.raise_level(level_of(TableDrop))  # see `apply_evict`
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    derived = [
        each.name for each in live_tables(machine) if source_table(each.transform) == table.uid
    ]
    if derived:
        return Reply(Code.REFUSED, table.uid, detail=sorted(derived))
    table.dropped_ms = max(command.now_ms, 1)
    table.failures = []
    return Reply(Code.OK, table.uid, detail=table)


@applies(ForgetTable)
def apply_forget(machine: Machine, command: ForgetTable, position: int) -> Reply:
    """Forget a dropped table, or note in the meta group that all groups have. Idempotent."""
    machine.counters.raise_level(level_of(ForgetTable))  # see `apply_evict`
    table = machine.meta.tables.get(command.table)
    if table is not None:
        table.forgotten = table.forgotten or bool(table.dropped_ms)
        if table.forgotten and command.files_gone:
            del machine.meta.tables[command.table]
        return Reply(Code.OK)
    if machine.group == 0:
        return Reply(Code.NOT_FOUND)
    machine.claims.jobs[command.table] = FORGOTTEN
    machine.claims.watches.pop(command.table, None)
    for stream in machine.directory.streams.values():
        if stream.tables and command.table in stream.tables:
            without_forgotten(machine, stream)
            machine.changes.streams.add(stream.uid)
    return Reply(Code.OK)


def is_forgotten(machine: Machine, table: int) -> bool:
    """Report whether a stream group was told that the table is dropped."""
    return machine.claims.jobs.get(table, 0) == FORGOTTEN


def without_forgotten(machine: Machine, stream: Stream) -> None:
    """Remove the claims of dropped tables."""
    stream.tables = {
        table: claim
        for table, claim in (stream.tables or {}).items()
        if not is_forgotten(machine, table)
    } or None
