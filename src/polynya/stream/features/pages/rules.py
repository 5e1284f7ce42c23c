"""Pages: a part of a long index as an object in the store, and one entry in its place
(docs/formats/pages.md).

A page is held as a pack is. What only its entries name belongs to it: those packs leave the tables
of the group, and come back when the page is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from polynya.base.limits import WRITE_MS_MAX
from polynya.stream.command import applies, level_of
from polynya.stream.features.pages.commands import PageEntries, ReleasePaged
from polynya.stream.parts import ENTRY_FLAGS, PAGED, UNDECIDED, ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state import entries as form
from polynya.stream.state import index
from polynya.stream.state.model import Pack, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_U32_MAX = 2**32 - 1
# a `PackWritten` that is older is refused, and a pack becomes a page's own only if it is
LATE_MS = 2 * WRITE_MS_MAX


def mark_of(entries: bytes) -> int:
    """Return a checksum of entries as the index has them in memory."""
    return int(crc32c(entries))


def summed(entries: bytes, page: str, stored: int, crc: int) -> tuple[ColdSlice, int] | None:
    """Return what stands for these entries in the index, and their largest append time; None if
    they cannot be in one page."""
    rows = list(form.ENTRY.iter_unpack(entries))
    records = length = missing_records = missing_bytes = flags = 0
    for row, cold in zip(rows, map(_bare, rows), strict=True):
        if (cold.record, cold.byte) != (rows[0][0] + records, rows[0][1] + length):
            return None
        if row[-2] in (form.UNKNOWN, PAGED) or cold.flags & UNDECIDED:
            return None
        records, length = records + cold.records, length + cold.length
        missing_records += cold.missing_records
        missing_bytes += cold.missing_bytes
        flags |= cold.flags & ENTRY_FLAGS[1]  # without those of markers
    first_ms, last_ms = min(map(_first_ms, rows)), max(row[2] for row in rows)
    if records > _U32_MAX or length > _U32_MAX or last_ms - first_ms > form.SPAN_MS_MAX:
        return None
    found = ColdSlice(
        rows[0][0], rows[0][1], records, length, page, 0, stored, crc, first_ms,
        PAGED, max(row[10] for row in rows), missing_records, missing_bytes, flags, 0, len(rows),
    )  # fmt: skip
    return found, last_ms


@applies(PageEntries)
def apply_page_entries(machine: Machine, command: PageEntries, position: int) -> Reply:
    """Put the page in place of its entries, if the index has exactly these."""
    machine.counters.raise_level(level_of(PageEntries))
    taken = (_page(machine, command) for _ in range(1))
    return machine.packs.take_slots(command.page, machine.group, command.now_ms, taken)


def _page(machine: Machine, command: PageEntries) -> bool:
    stream = machine.directory.by_uid.get(command.uid)
    if stream is None or stream.cold is None or stream.deleted:
        return False
    begin = index.first_from(stream.cold, command.record)
    end = index.first_from(stream.cold, command.end)
    if begin == end or command.page not in machine.packs.owned:
        return False
    if end - begin == 1 and machine.packs.index_of(stream)[begin].pack == command.page:
        return True  # a repeat
    entries = index.cut(stream.cold, begin, end)
    if mark_of(entries) != command.mark or index.span(entries, 0, end - begin) != (
        command.record,
        command.end,
    ):
        return False
    found = summed(entries, command.page, command.stored, command.crc)
    if found is None or crosses_a_claim(stream, command.record, command.end):
        return False
    _hand_over(machine, Counter(index.pack_numbers(entries)), command.now_ms)
    number = machine.packs.hold_slice(command.page, machine.group)
    stream.cold = index.replaced(stream.cold, begin, end, index.packed(found[0], number, found[1]))
    machine.changes.streams.add(stream.uid)
    return True


def crosses_a_claim(stream: Stream, begin: int, end: int) -> bool:
    """Report whether a table's claim begins or ends between these records."""
    return any(
        begin < bound < end
        for claim in (stream.tables or {}).values()
        for bound in (claim.published, claim.claimed)
    )


def _hand_over(machine: Machine, counts: Mapping[int, int], now_ms: int) -> None:
    """Forget the packs that only the entries of a page name."""
    for number, count in counts.items():
        if not number:
            continue
        key = machine.packs.by_number[number]
        held = machine.packs.held[key]
        pack = machine.packs.owned.get(key) if held.owner_group == machine.group else None
        if (
            held.slices == count
            and pack is not None
            and pack.groups == [machine.group]
            and machine.counters.log_ms - pack.written_ms > LATE_MS
        ):
            del machine.packs.held[key], machine.packs.owned[key]
            machine.changes.held.add(key)
            machine.changes.packs.add(key)


@applies(ReleasePaged)
def apply_release_paged(machine: Machine, command: ReleasePaged, position: int) -> Reply:
    """Release a page that no index names, and the packs of its entries."""
    held = machine.packs.held.get(command.page)
    if held is None:
        return Reply(Code.NOT_FOUND)
    if held.slices or command.page not in machine.packs.pages_gone:
        return Reply(Code.NOT_YET)
    for key, count in command.packs:
        known = machine.packs.held.get(key)
        if known is not None:
            machine.packs.drop_slice(known.number, command.now_ms, min(count, known.slices))
        elif key not in machine.packs.owned:
            machine.packs.owned[key] = Pack([], command.now_ms, machine.counters.log_ms)
            machine.changes.packs.add(key)
    machine.packs.forget_page(command.page, command.now_ms)
    return Reply(Code.OK)


def is_late(machine: Machine, now_ms: int) -> bool:
    """Report whether a `PackWritten` of this time comes too late: a page may own its pack."""
    return (
        machine.counters.level >= level_of(PageEntries)
        and machine.counters.log_ms - now_ms > LATE_MS
    )


def _first_ms(row: tuple[int, ...]) -> int:
    return row[2] - row[9]


def _bare(row: tuple[int, ...]) -> ColdSlice:
    return form.unpacked(row, "")
