"""Entries whose slices were built while transactions were open: when all of these have ended and
none of their batches is of an aborted one, the entry says so, and no byte of the slice changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.stream.command import applies
from polynya.stream.features.markers.commands import DecideEntries
from polynya.stream.parts import UNDECIDED
from polynya.stream.replies import Code, Reply
from polynya.stream.state import entries as form
from polynya.stream.state import index
from polynya.stream.state.aborted import aborted_of, overlapping
from polynya.stream.state.tails import stable_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_FLAGS_AT = form.ENCODING_AT + 1


def undecided_in(entries: bytes, rows: bytes) -> tuple[list[int], list[int]]:
    """Return the numbers of the entries with flag 8: those that lie in no aborted transaction, and
    the others. All must lie before the stable end."""
    clear: list[int] = []
    others: list[int] = []
    flags = entries[_FLAGS_AT :: form.ENTRY_BYTES]
    for at, own in enumerate(flags):
        if own & UNDECIDED:
            begin, end = index.span(entries, at, at + 1)
            (others if overlapping(rows, begin, end) else clear).append(at)
    return clear, others


def undecided_from(cold: index.Entries, begin: int) -> int:
    """Return the number of the entries with flag 8 from the `begin`-th on."""
    flags = index.cut(cold, begin, index.count(cold))[_FLAGS_AT :: form.ENTRY_BYTES]
    return sum(1 for own in flags if own & UNDECIDED)


@applies(DecideEntries)
def apply_decide_entries(machine: Machine, command: DecideEntries, position: int) -> Reply:
    """Decide the entries that lie wholly in a range and before the stable end, but in no aborted
    transaction. The reply's detail lists the ranges in which some were."""
    machine.counters.raise_level(TRANSACTION_LEVEL)  # a standalone node gets no `SetLevel`
    decided = [at for at, each in enumerate(command.ranges) if _decide(machine, *each)]
    return Reply(Code.OK, detail=decided)


def _decide(machine: Machine, uid: int, record: int, end: int) -> bool:
    stream = machine.directory.by_uid.get(uid)
    if stream is None or stream.cold is None or stream.deleted:
        return False
    first = index.first_from(stream.cold, record)
    behind = index.entries_before(stream.cold, min(end, stable_of(stream)[0]))
    if first >= behind:
        return False
    entries = bytearray(index.cut(stream.cold, first, behind))
    clear, _ = undecided_in(bytes(entries), aborted_of(stream))
    for at in clear:
        entries[at * form.ENTRY_BYTES + _FLAGS_AT] &= ~UNDECIDED & 0xFF
    if not clear:
        return False
    stream.cold = index.replaced(stream.cold, first, behind, bytes(entries))
    machine.changes.streams.add(uid)
    return True
