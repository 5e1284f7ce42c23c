"""The cost of a long stream's index, and the memory of its entries and packs:
`python -m bench.index`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from gc import collect
from pathlib import Path
from random import Random
from subprocess import run
from time import process_time

from polynya.stream.commands import ColdSlice
from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.model import Pack
from polynya.wire.pack import pack_key

SIZES = (50, 250_000, 1_000_000)
APPENDS = 2_000
ENTRIES = 1_000_000  # of the stream whose memory is measured
ENTRIES_OF_PACK = 2  # merged slices of 4 MiB in packs of 8 MiB
MIB = 1 << 20


def entries_of(count: int) -> bytes:
    """Return an index of so many entries, as a snapshot has it."""
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
            key = pack_key("c" * 16, home_group=1, now_ms=now_ms, random=random.randbytes(16))
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
            machine.hold_slice(cold.pack, 1)
        if packs and cold.pack not in machine.packs:
            # of its own command, so with a key of its own
            machine.packs[str(cold.pack.encode(), "ascii")] = Pack([1], cold.time_ms)
        if entries:
            data = index.appended(data, index.packed(cold, number, cold.record_time_ms_max))
        if at % 1_000 == 0:
            machine.take_changes()
    machine.take_changes()
    collect()
    return (resident() - before) / MIB + 0 * index.count(data)


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def main() -> None:
    if len(sys.argv) > 1:
        chosen = {"entries": "entries" in sys.argv, "packs": "packs" in sys.argv}
        print(f"{' and '.join(sys.argv[1:]):<18} {memory(**chosen):>8.1f} MiB")
        return
    costs()
    print(f"memory of a stream of {ENTRIES:,} entries:")
    for what in (("entries",), ("packs",), ("entries", "packs")):
        run([sys.executable, "-m", "bench.index", *what], check=True)


if __name__ == "__main__":
    main()
