"""Tables as a stream group knows them: which streams they cover, and what ends before they take it.

A group learns of a table by `WatchStreams`. From then on the table takes no record that was trimmed
before its claim. The group counts the records that leave with a deleted or expired stream untaken.
A table that holds keeps retention and expiry from its records until it has them; deletions and
trims on request are carried out at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from polynya.base.levels import INTERNAL_LEVEL
from polynya.base.names import OWN_FOLDERS, is_internal, unnamed_folders
from polynya.stream.command import applies, level_of
from polynya.stream.features.tables.commands import WatchStreams
from polynya.stream.features.tables.lifetimes import is_forgotten
from polynya.stream.features.tables.state import Watch
from polynya.stream.replies import Code, Reply
from polynya.stream.state import record_gaps
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(WatchStreams)
def apply_watch(machine: Machine, command: WatchStreams, position: int) -> Reply:
    """Learn of a table, or of its new prefixes. Idempotent. NOT_FOUND: it was dropped."""
    machine.counters.raise_level(level_of(WatchStreams))  # see `apply_evict`
    if is_forgotten(machine, command.table):
        return Reply(Code.NOT_FOUND)
    watch = machine.claims.watches.setdefault(command.table, Watch(command.table, command.prefixes))
    watch.prefixes, watch.hold = command.prefixes, command.hold
    return Reply(Code.OK)


def covers(name: str, prefixes: Collection[str], without: Collection[str] = ()) -> bool:
    """Report whether a canonical name is under one of the prefixes. A longer one of `without`
    wins."""
    if is_internal(name):
        return False
    longest = max((len(prefix) for prefix in prefixes if name.startswith(prefix)), default=-1)
    return longest >= 0 and not any(
        len(other) > longest and name.startswith(other) for other in without
    )


def watch_of(machine: Machine, name: str) -> Watch | None:
    """Return the table that takes the records of a name: that of the longest prefix."""
    found, longest = None, -1
    if is_internal(name):
        return None
    own = name.startswith(OWN_FOLDERS) and (
        machine.counters.level >= INTERNAL_LEVEL or machine.counters.standalone
    )
    for watch in machine.claims.watches.values():
        if own and name.startswith(tuple(unnamed_folders(watch.prefixes))):
            continue
        for prefix in watch.prefixes:
            if len(prefix) > longest and name.startswith(prefix):
                found, longest = watch, len(prefix)
    return found


def untaken_from(stream: Stream, watch: Watch, committed: Mapping[int, int] | None = None) -> int:
    """Return the first record that the table may still need. `committed` has the last committed job
    of each table; without it, the records of the last claim count as needed."""
    claims = stream.tables or {}
    claim = claims.get(watch.table)
    if claim is None:
        return max((other.claimed for other in claims.values()), default=0)
    taken = committed is not None and claim.job <= committed.get(watch.table, 0)
    return claim.claimed if taken else claim.published


def held_from(
    machine: Machine, stream: Stream, committed: Mapping[int, int] | None = None
) -> int | None:
    """Return the first record that a table holds, or None if no table holds any."""
    watch = watch_of(machine, stream.name) if machine.claims.watches else None
    if watch is None or not watch.hold or stream.next_record == stream.first_record:
        return None
    first = untaken_from(stream, watch, committed)
    return first if first < stream.next_record else None


def count_lost(machine: Machine, stream: Stream) -> None:
    """Count the records that end with this stream and that no table took."""
    watch = (
        watch_of(machine, stream.name) if machine.claims.watches and not stream.deleted else None
    )
    if watch is None:
        return
    claims = stream.tables or {}
    begin = max((claim.claimed for claim in claims.values()), default=0)
    if stream.fork is not None:
        begin = max(begin, stream.fork.record)
    own = claims.get(watch.table)
    watch.lost += own.skipped + own.skipping if own is not None else 0
    if begin < stream.next_record:
        watch.lost += stream.next_record - begin - record_gaps.missing(stream, begin)
