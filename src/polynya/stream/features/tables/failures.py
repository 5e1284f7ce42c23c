"""Ranges that a table's jobs could not read: counted, set aside after some failures, and retried on
request.

The list changes only while no job is planned: `TableFail` and `TableRetry` abandon the open job. So
each plan of a job leaves out, and takes again, the same ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.tables.commands import TableFail, TableFault, TableRetry
from polynya.stream.features.tables.lifetimes import live_table
from polynya.stream.features.tables.state import Failure
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.features.tables.state import Table
    from polynya.stream.machine import Machine

TRIES = 3  # failures after which a range is set aside
FAILURES_MAX = 1000  # of one table: they are state of the meta group


@applies(TableFault)
def apply_fault(machine: Machine, command: TableFault, position: int) -> Reply:
    """Note why a job failed that has not committed. Detail: the table."""
    machine.counters.raise_level(level_of(TableFault))  # see `apply_evict`
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if command.job > table.committed:
        table.fault, table.fault_ms = command.reason, command.now_ms
    return Reply(Code.OK, table.uid, detail=table)


@applies(TableFail)
def apply_fail(machine: Machine, command: TableFail, position: int) -> Reply:
    """Count failures of the open job, and abandon it. NOT_YET: the job is not open. TOO_MANY: no
    room for all of them. Detail: the table."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if not table.open or table.job != command.job:
        return Reply(Code.NOT_YET, table.uid, detail=table)
    table.abandoned = True
    full = False
    for row in command.ranges:
        failure = _found(table, row)
        if failure is None and len(table.failures) >= FAILURES_MAX:
            full = True
            continue
        if failure is None:
            failure = Failure(*row, 0, command.now_ms, command.now_ms)
            table.failures.append(failure)
        failure.record, failure.end = min(failure.record, row[2]), max(failure.end, row[3])
        failure.pack, failure.offset, failure.reason = row[4:]
        failure.count, failure.last_ms = failure.count + 1, command.now_ms
        if failure.count >= TRIES:
            failure.aside, failure.again = True, False
    return Reply(Code.TOO_MANY if full else Code.OK, table.uid, detail=table)


@applies(TableRetry)
def apply_retry(machine: Machine, command: TableRetry, position: int) -> Reply:
    """Put all ranges that are set aside into the next job. Detail: the table."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if any(failure.aside for failure in table.failures):
        table.abandoned = table.abandoned or table.open
        for failure in table.failures:
            failure.aside, failure.again = False, failure.aside or failure.again
    return Reply(Code.OK, table.uid, detail=table)


def settle(table: Table) -> None:
    """Forget what a committed job has read: all but the ranges that are set aside."""
    table.failures = [failure for failure in table.failures if failure.aside]


def _found(table: Table, row: tuple[int, str, int, int, str, int, str]) -> Failure | None:
    """Return the failure that shares records with this range."""
    for failure in table.failures:
        if failure.uid == row[0] and failure.record < row[3] and row[2] < failure.end:
            return failure
    return None
