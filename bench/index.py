"""The cost of a long stream's index, and the memory of its entries and packs:
`python -m bench.index`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from gc import collect
from pathlib import Path
from random import Random
from subprocess import run
from tempfile import NamedTemporaryFile
from time import process_time

from polynya.base import limits
from polynya.cold.rewriting.merge_planner import next_page
from polynya.stream import registry  # noqa: F401 - its rules
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.features.pages.commands import PageEntries
from polynya.stream.features.pages.rules import LATE_MS, mark_of
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state import index
from polynya.stream.state.model import Pack, Stream
from polynya.wire.pack import pack_key
from polynya.wire.page import build_page, page_key

SIZES = (50, 250_000, 1_000_000)
APPENDS = 2_000
ENTRIES = 1_000_000  # of the stream whose memory is measured
ENTRIES_OF_PACK = 2  # merged slices of 4 MiB in packs of 8 MiB
MIB = 1 << 20


def entries_of(count: int) -> bytes:
    """Return an index with that many entries, as a snapshot has it."""
    return b"".join(entry_of(number) for number in range(count))


def entry_of(number: int) -> bytes:
    return index.packed(ColdSlice(number, number * 100, 1, 100, "", 0, 100, 0, number), 1)


def costs() -> None:
    print("entries      first append    an append    a look-up   (CPU us)")
    for count in SIZES:
        data: index.Entries = entries_of(count)
        entry = entry_of(count)
        begin = process_time()
        data = index.appended(data, entry)
        first = process_time() - begin
        begin = process_time()
        for _ in range(APPENDS):
            grown = index.appended(data, entry)
            data = grown if count > SIZES[0] else data
        each = (process_time() - begin) / APPENDS
        begin = process_time()
        for number in range(APPENDS):
            index.holding(data, number * 7919 % count)
        found = (process_time() - begin) / APPENDS
        print(f"{count:>9,} {first * 1e6:>14,.1f} {each * 1e6:>12.2f} {found * 1e6:>12.2f}")


def merged_slices() -> Iterator[ColdSlice]:
    """Yield the slices of a stream of `ENTRIES` entries that are merged."""
    random, record, byte, now_ms, key, offset = Random(1), 0, 0, 1_700_000_000_000, "", 8
    for number in range(ENTRIES):
        records, length = random.randint(20_000, 60_000), random.randint(3 << 20, 4 << 20)
        if number % ENTRIES_OF_PACK == 0:
            key = pack_key("c" * 16, owner_group=1, now_ms=now_ms, random=random.randbytes(16))
            offset = 8
        stored = length + records * 4 + random.randint(64, 6000)
        span_ms = random.randint(1_000, 60_000)
        yield ColdSlice(
            record, byte, records, length, key, offset, stored, random.getrandbits(32), now_ms,
            0, now_ms + span_ms, 0, 0, 0, 0, random.randint(10, 4000),
        )  # fmt: skip
        record, byte, offset = record + records, byte + length, (offset + stored + 7) & ~7
        now_ms += span_ms


def memory(*, entries: bool, packs: bool) -> float:
    """Return the MiB that parts of the state of such a stream take."""
    machine, data, before = Machine(1), None, resident()
    for at, cold in enumerate(merged_slices()):
        number = 1 + at // ENTRIES_OF_PACK
        if packs:
            machine.packs.hold_slice(cold.pack, 1)
        if packs and cold.pack not in machine.packs.owned:
            # of its own command, so with a key of its own
            machine.packs.owned[str(cold.pack.encode(), "ascii")] = Pack([1], cold.time_ms)
        if entries:
            data = index.appended(data, index.packed(cold, number, cold.record_time_ms_max))
        if at % 1_000 == 0:
            machine.take_changes()
    machine.take_changes()
    collect()
    return (resident() - before) / MIB + 0 * index.count(data)


def paged_state() -> tuple[bytes, int, int]:
    """Return the snapshot of such a stream whose closed entries are in pages, the number of these,
    and the bytes of their objects."""
    machine, pages, stored = Machine(1), 0, 0
    machine.apply(Create("bench/long", 1, "text/plain", Encoding.BYTES))
    machine.counters.level = 3
    (stream,) = machine.directory.streams.values()
    for at, cold in enumerate(merged_slices()):
        if cold.pack not in machine.packs.owned:
            machine.apply(PackWritten(str(cold.pack.encode(), "ascii"), [1], cold.time_ms))
        entry = index.packed(cold, machine.packs.hold_slice(cold.pack, 1), cold.record_time_ms_max)
        stream.cold = index.appended(stream.cold, entry)
        machine.counters.log_ms = cold.time_ms
        if at % 1_000 == 0:
            machine.take_changes()
        if index.count(stream.cold) - pages > 2 * limits.PAGE_ENTRIES:
            made, size = page_of(machine, stream, pages)
            pages, stored = pages + made, stored + size
            machine.outbox.messages.clear()
    while (one := page_of(machine, stream, pages))[0]:
        pages, stored = pages + one[0], stored + one[1]
    machine.outbox.messages.clear()
    return snapshot_of(machine), pages, stored


def loaded_memory(path: Path) -> float:
    """Return the MiB that a state takes when it is read from its snapshot."""
    machine_from(snapshot_of(Machine(1)), lambda position, uid: b"")  # imports what it needs
    data = path.read_bytes()
    collect()
    before = resident()
    machine = machine_from(data, lambda position, uid: b"")
    collect()
    return (resident() - before) / MIB + 0 * machine.directory.count


def page_of(machine: Machine, stream: Stream, pages: int) -> tuple[int, int]:
    """Put the entries behind the pages into another page, as the leader would; return 1 and the
    bytes of its object, or 0 without one."""
    now_ms = machine.counters.log_ms + 10 * LATE_MS
    entries = index.cut(stream.cold or b"", pages, pages + limits.PAGE_ENTRIES + 1)
    found, _ = next_page(
        entries, (), slice_bytes_max=limits.SLICE_BYTES_MAX, count_max=limits.PAGE_ENTRIES
    )
    if found is None:
        return 0, 0
    part = entries[found[0] * index.ENTRY_BYTES : found[1] * index.ENTRY_BYTES]
    key = page_key("c" * 16, group=1, now_ms=now_ms, random=Random(pages).randbytes(16))
    packs = {number: machine.packs.by_number[number] for number in index.pack_numbers(part)}
    data = build_page(key, part, packs, group=1, uid=stream.uid, now_ms=now_ms)
    assert data is not None
    machine.apply(PackWritten(key, [1], now_ms))
    span = index.span(part, 0, found[1] - found[0])
    reply = machine.apply(PageEntries(key, stream.uid, *span, mark_of(part), len(data), 0, now_ms))
    assert reply.detail == [0]
    machine.counters.log_ms -= 10 * LATE_MS
    return 1, len(data)


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def main() -> None:
    if len(sys.argv) > 1:
        if "paged" in sys.argv:
            data, pages, stored = paged_state()
            with NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                run([sys.executable, "-m", "bench.index", "loaded", file.name], check=True)
            print(f"{pages:,} pages of {stored / MIB:,.1f} MiB; a snapshot of {len(data):,} bytes")
            return
        if "loaded" in sys.argv:
            print(f"{'in pages':<18} {loaded_memory(Path(sys.argv[-1])):>8.2f} MiB")
            return
        chosen = {"entries": "entries" in sys.argv, "packs": "packs" in sys.argv}
        print(f"{' and '.join(sys.argv[1:]):<18} {memory(**chosen):>8.1f} MiB")
        return
    costs()
    print(f"memory of a stream of {ENTRIES:,} entries:")
    for what in (("entries",), ("packs",), ("entries", "packs"), ("paged",)):
        run([sys.executable, "-m", "bench.index", *what], check=True)


if __name__ == "__main__":
    main()
