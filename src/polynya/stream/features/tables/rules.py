"""Tables: the records that a table's job may read (in the streams' groups), and the job that a
table has reached (in the meta group).

A job opens in the meta group, then claims in every group, then commits in the meta group by one
compare-and-swap. The next job's claim command carries the number of the last committed job, and
resolves earlier claims by it. Claims of a committed job become published; claims of a job that
never committed are made again. So nothing has to be sent back to the groups after a commit, and a
crash needs no repair. Both rest on one rule: a driver gets a job only after every group has applied
its `ClaimRanges`. From then on (`planned`) the job claims nothing more. If a planner dies earlier,
the next one abandons its job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from polynya.base.transforms import source_table
from polynya.stream.command import applies, level_for, level_of, needs
from polynya.stream.features.pages.eviction import lags, stubs
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    TableAbandon,
    TableCommit,
    TableCreate,
    TableMake,
    TableMove,
    TableOpen,
    TablePlanned,
    TableReplace,
)
from polynya.stream.features.tables.failures import settle
from polynya.stream.features.tables.lifetimes import live_table, live_tables
from polynya.stream.features.tables.state import Table
from polynya.stream.features.tables.watches import covers
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index, record_gaps
from polynya.stream.state.aborted import aborted_of
from polynya.stream.state.model import Stream, TableClaim
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

LAG_STREAMS = 512  # streams scanned between two yields: some milliseconds


class ClaimedRange(msgspec.Struct, array_like=True, gc=False):
    """A stream's part of a job: slices of its index, without the records before `first` and from
    `end` on (0: to their end)."""

    uid: int
    name: str
    content_type: str
    encoding: int
    slices: list[ColdSlice]
    first: int = 0
    end: int = 0
    aborted: bytes = b""  # of the stream: see `state.aborted`


class Lag(msgspec.Struct, array_like=True, gc=False):
    """The lag of a table behind the streams of one group."""

    streams: int = 0
    records: int = 0  # not in the table yet
    since_ms: int = 0  # append time of the oldest of them; 0: none, or unknown
    skipped: int = 0  # records of existing streams that were trimmed before the table read them
    group: int = 0
    slices: int = 0  # cold slices that hold those records …
    bytes: int = 0  # … and their payload
    lost: int = 0  # records of streams that ended before the table took them
    watched: bool = False  # the group knows the table, and counts them


@applies(TableCreate)
def apply_create(machine: Machine, command: TableCreate, position: int) -> Reply:
    """Create a table. Replies CREATED, EXISTS (same name and prefix) or EXISTS_DIFFERENT (name or
    prefix is taken). Detail: the table."""
    for table in live_tables(machine):
        if table.name == command.name or table.prefix == command.prefix:
            same = table.name == command.name and table.prefix == command.prefix
            return Reply(Code.EXISTS if same else Code.EXISTS_DIFFERENT, table.uid, detail=table)
    uid = machine.counters.next_uid()
    machine.meta.tables[uid] = table = Table(uid, command.name, command.prefix, command.now_ms)
    return Reply(Code.CREATED, uid, detail=table)


@applies(TableMake)
def apply_make(machine: Machine, command: TableMake, position: int) -> Reply:
    """Create a table, as `apply_create` does. A table that shares a prefix, or has the name with
    other options, is different. NOT_FOUND: the table whose rows are its input does not exist."""
    machine.counters.raise_level(level_for(command))  # see `apply_evict`
    options = (command.hold, command.columns, command.partitions, command.transform)
    for table in live_tables(machine):
        same = (
            table.name == command.name
            and table.prefixes == command.prefixes
            and (table.hold, table.columns, table.partitions, table.transform) == options
        )
        derived = table.transform or command.transform
        overlap = not derived and set(table.prefixes) & set(command.prefixes)
        if same or table.name == command.name or overlap:
            return Reply(Code.EXISTS if same else Code.EXISTS_DIFFERENT, table.uid, detail=table)
    source = source_table(command.transform)
    if source and live_table(machine, source) is None:
        return Reply(Code.NOT_FOUND)
    uid = machine.counters.next_uid()
    table = Table(uid, command.name, command.prefixes[0], command.now_ms)
    table.others, table.typed = command.prefixes[1:], command.typed
    table.hold, table.columns, table.partitions, table.transform = options
    machine.meta.tables[uid] = table
    return Reply(Code.CREATED, uid, detail=table)


@applies(TableOpen)
def apply_open(machine: Machine, command: TableOpen, position: int) -> Reply:
    """Open a new job (CREATED), or return the open one (OK). Detail: the table."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if not table.open:
        table.job += 1
        table.abandoned = table.planned = False
        table.opened_ms = command.now_ms
        return Reply(Code.CREATED, table.uid, detail=table)
    return Reply(Code.OK, table.uid, detail=table)


@applies(TablePlanned)
def apply_planned(machine: Machine, command: TablePlanned, position: int) -> Reply:
    """Record that all groups have claimed for this job. NOT_YET: the job is no longer open."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if not table.open or table.job != command.job:
        return Reply(Code.NOT_YET, table.uid, detail=table)
    table.planned = True
    return Reply(Code.OK, table.uid, detail=table)


@applies(TableCommit)
def apply_commit(machine: Machine, command: TableCommit | TableReplace, position: int) -> Reply:
    """Move both pointers and the job number at once. OK, DUPLICATE (this attempt committed before),
    NOT_YET (another won). Detail: the table."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    code = _advanced(table, command)
    if code == Code.OK:
        table.rows = max(0, table.rows + command.rows)
        table.dlq_rows += command.dlq_rows
    return Reply(code, table.uid, detail=table)


@applies(TableReplace)
def apply_replace(machine: Machine, command: TableReplace, position: int) -> Reply:
    """Commit a job that left fewer rows than there were. Replies as `apply_commit`."""
    machine.counters.raise_level(level_of(TableReplace))  # see `apply_evict`
    return apply_commit(machine, command, position)


@applies(TableMove)
def apply_move(machine: Machine, command: TableMove, position: int) -> Reply:
    """Commit a job that wrote the whole table to its own folder. Replies as `apply_commit`.

    Columns that were declared meanwhile stay declared."""
    machine.counters.raise_level(level_of(TableMove))  # see `apply_evict`
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    code = _advanced(table, command)
    if code == Code.OK:
        table.dlq_rows += command.dlq_rows
        table.columns = list((dict(table.columns) | dict(command.columns)).items())
        table.partitions = command.partitions
        table.moved_job, table.moved_ms = command.job, command.now_ms
    return Reply(code, table.uid, detail=table)


def _advanced(table: Table, command: TableCommit | TableMove | TableReplace) -> Code:
    """Move a table's pointers and job number if the command's job is open on its base."""
    if table.committed == command.job and table.attempt == command.attempt:
        return Code.DUPLICATE
    if (
        not table.open
        or not table.planned
        or table.job != command.job
        or (table.main, table.dlq) != (command.base_main, command.base_dlq)
    ):
        return Code.NOT_YET
    table.committed = command.job
    table.main, table.dlq, table.attempt = command.main, command.dlq, command.attempt
    table.committed_ms, table.result = command.now_ms, command.result
    table.fault, table.fault_ms = "", 0
    settle(table)
    return Code.OK


@applies(TableAbandon)
def apply_abandon(machine: Machine, command: TableAbandon, position: int) -> Reply:
    """Abandon the open job; the next one claims its records again. Idempotent."""
    table = live_table(machine, command.table)
    if table is None:
        return Reply(Code.NOT_FOUND)
    if table.open and table.job == command.job:
        table.abandoned = True
    return Reply(Code.OK, table.uid, detail=table)


@applies(ClaimRanges)
def apply_claim(machine: Machine, command: ClaimRanges, position: int) -> Reply:
    """Claim cold records that are in no table yet, at most about `bytes_max`. Detail:
    [ClaimedRange, …].

    NOT_YET: a later job has claimed here already, or the table was dropped. Without `fresh` the job
      is planned: return its earlier claims, less deleted streams.
    Ranges of `again` that are published are added: they were set aside."""
    if command.job < machine.claims.jobs.get(command.table, 0):
        return Reply(Code.NOT_YET)
    machine.claims.jobs[command.table] = command.job
    ranges: list[ClaimedRange] = []
    left = command.bytes_max
    prefixes = prefixes_of(machine, command.table, command.prefix)
    for stream in machine.directory.in_order():
        claim = stream.tables.get(command.table) if stream.tables else None
        member = covers(stream.name, prefixes, command.without) and not _is_taken_over(
            stream, command.table
        )
        if claim is not None and claim.job != command.job:
            machine.changes.streams.add(stream.uid)
            if claim.job <= command.committed:
                claim.published, claim.skipped, claim.skipping = (
                    claim.claimed,
                    claim.skipped + claim.skipping,
                    0,
                )
            elif member:
                claim.claimed, claim.skipping = claim.published, 0
            else:
                # a longer prefix takes the stream over where this claim ends: repeat the claim
                # unchanged
                claim.job = command.job
        if not stream.cold:
            continue
        if claim is None or claim.job != command.job:
            if not member or left <= 0 or not command.fresh:
                continue
            claim = _claim(machine, stream, command, claim)
            machine.changes.streams.add(stream.uid)
        first, end = (
            index.first_from(stream.cold, claim.published),
            index.first_from(stream.cold, claim.claimed),
        )
        first = max(first, index.entries_before(stream.cold, claim.first))
        taken = machine.packs.index_of(stream)[first:end]
        if taken:
            left -= sum(cold.length if cold.is_page else cold.read_bytes for cold in taken)
            ranges.append(
                ClaimedRange(
                    stream.uid,
                    stream.name,
                    stream.content_type,
                    stream.encoding,
                    taken,
                    claim.first,
                    aborted=aborted_of(stream),
                )
            )
    return Reply(Code.OK, detail=ranges + list(_again(machine, command)))


def prefixes_of(machine: Machine, table: int, prefix: str) -> list[str]:
    """Return the table's prefixes; a group that was not told of the table knows only the
    command's."""
    watch = machine.claims.watches.get(table)
    return [prefix] if watch is None else watch.prefixes


def _again(machine: Machine, command: ClaimRanges) -> Iterator[ClaimedRange]:
    """Yield what is left of ranges that were set aside by committed jobs."""
    for _, uid, record, end in command.again:
        stream = machine.directory.by_uid.get(uid)
        claim = stream.tables.get(command.table) if stream is not None and stream.tables else None
        if stream is None or claim is None or claim.published < end:
            continue  # gone, or still to be claimed
        first = max(record, stream.first_record)
        taken = machine.packs.index_of(stream)[
            index.entries_before(stream.cold, first) : index.first_from(stream.cold, end)
        ]
        if taken and first < end:
            yield ClaimedRange(
                uid,
                stream.name,
                stream.content_type,
                stream.encoding,
                taken,
                first,
                end,
                aborted_of(stream),
            )


def _is_taken_over(stream: Stream, table: int) -> bool:
    """Report whether another table claimed here after this one. A planner with a stale view of the
    tables must not take its records."""
    return (
        stream.tables is not None
        and table in stream.tables
        and next(reversed(stream.tables)) != table
    )


def _claim(
    machine: Machine, stream: Stream, command: ClaimRanges, claim: TableClaim | None
) -> TableClaim:
    """Claim everything cold now, up to the first slice that an open transaction reaches into. A
    table new to the stream begins where another table's last claim
    ended."""
    assert stream.cold is not None
    entries = index.entries_before(stream.cold, stable_of(stream)[0])
    end = index.end_of(stream.cold, entries - 1)[0] if entries else 0
    if stream.tables is None:
        stream.tables = {}
    if claim is None:
        begin = max((other.claimed for other in stream.tables.values()), default=0)
        claim = stream.tables[command.table] = TableClaim(begin, begin, 0)
    claim.first = stream.first_record if command.table in machine.claims.watches else 0
    available = max(_available_from(stream, claim.published), claim.first)
    claim.skipping = record_gaps.between(_own_from(stream, claim.published), available)
    claim.claimed = max(end, claim.published)
    claim.job = command.job
    return claim


def lag_of(
    machine: Machine, table: int, prefix: str, without: list[str], committed: int
) -> Iterator[Lag]:
    """Yield the table's lag behind this group's streams: the same `Lag` repeatedly, complete at the
    end. The group may change between yields; streams that exist at the start are counted unless
    they are deleted."""
    watch = machine.claims.watches.get(table)
    lag = Lag(group=machine.group, lost=watch.lost if watch else 0, watched=watch is not None)
    prefixes = prefixes_of(machine, table, prefix)
    for number, stream in enumerate(list(machine.directory.streams.values()), 1):
        if number % LAG_STREAMS == 0:
            yield lag
        if machine.directory.by_uid.get(stream.uid) is not stream:
            continue
        claim = stream.tables.get(table) if stream.tables else None
        if not covers(stream.name, prefixes, without):
            # taken over since: earlier claimed records that remain are still its own
            if claim is not None and claim.job > committed:
                begin = _available_from(stream, claim.published)
                lag.records += record_gaps.between(begin, claim.claimed)
            continue
        lag.streams += 1
        begin = 0 if claim is None else claim.claimed if claim.job <= committed else claim.published
        if claim is not None:
            lag.skipped += claim.skipped + (claim.skipping if claim.job <= committed else 0)
        wanted = _own_from(stream, begin)
        begin = max(_available_from(stream, begin), stream.first_record if watch is not None else 0)
        lag.skipped += record_gaps.between(wanted, begin)
        end = stable_of(stream)[0]
        if begin < end:
            lag.records += end - begin - record_gaps.missing(stream, begin, end)
            since = _time_of(machine, stream, begin)
            lag.since_ms = min(lag.since_ms or since, since)
            first = index.entries_before(stream.cold, begin)
            if stream.cold is not None and first < index.count(stream.cold):
                lag.slices += index.count(stream.cold) - first
                lag.bytes += (
                    index.end_of(stream.cold, -1)[1] - index.begin_of(stream.cold, first)[1]
                )
    for number, (name, stub) in enumerate(stubs(machine), 1):
        if number % LAG_STREAMS == 0:
            yield lag
        if not covers(name, prefixes, without) or name not in machine.directory.evicted:
            continue
        lag.streams += 1
        if lags(machine, stub):
            lag.records += record_gaps.between(stub.first_record, stub.next_record)
            lag.slices, lag.bytes = lag.slices + 1, lag.bytes + stub.next_byte - stub.first_byte
            lag.since_ms = min(
                lag.since_ms or stub.created_ms, stub.created_ms + (stub.oldest or 0)
            )
    yield lag


def _own_from(stream: Stream, record: int) -> int:
    """Return `record`, or the stream's first own record if later: inherited ones are rows of the
    source only."""
    return max(record, stream.fork.record) if stream.fork is not None else record


def _available_from(stream: Stream, record: int) -> int:
    """Return the first stored record from this one on; a partly trimmed slice is taken whole."""
    record = _own_from(stream, record)
    at = index.first_from(stream.cold, record)
    if stream.cold is not None and at < index.count(stream.cold):
        return index.begin_of(stream.cold, at)[0]
    return max(record, stream.hot[0].record) if stream.hot else max(record, stream.next_record)


def _time_of(machine: Machine, stream: Stream, record: int) -> int:
    if stream.cold is not None:
        cold = machine.packs.index_of(stream)[max(0, index.holding(stream.cold, record))]
        if cold.record + cold.records > record:
            return cold.time_ms or stream.activity_ms
    return stream.hot[0].time_ms if stream.hot else stream.activity_ms


@needs(ClaimRanges)
def _claimed_by(machine: Machine, command: ClaimRanges) -> Iterator[str]:
    """Yield the streams from which a claim takes records, and those to be read again."""
    if command.fresh:
        yield from _lagging(machine, command)
    yield from (again[0] for again in command.again)


def _lagging(machine: Machine, command: ClaimRanges) -> Iterator[str]:
    watch = machine.claims.watches.get(command.table)
    prefixes = [command.prefix] if watch is None else watch.prefixes
    for name, stub in stubs(machine):
        if lags(machine, stub) and covers(name, prefixes, command.without):
            yield name
