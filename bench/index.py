"""The cost of appending an entry to a stream's index: `python -m bench.index`."""

from __future__ import annotations

from time import process_time

from polynya.stream.commands import ColdSlice
from polynya.stream.state import index

SIZES = (50, 250_000, 1_000_000)
APPENDS = 2_000
KEYS = {1: "packs/20260101-00/1-ff"}


def entries_of(count: int) -> bytes:
    """Return an index of so many entries, as a snapshot has it."""
    return b"".join(entry_of(number) for number in range(count))


def entry_of(number: int) -> bytes:
    return index.packed(ColdSlice(number, number * 100, 1, 100, "", 0, 100, 0, number), 1)


def main() -> None:
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
            index.holding(data, number)
        found = (process_time() - begin) / APPENDS
        print(f"{count:>9,} {first * 1e6:>14,.1f} {each * 1e6:>12.2f} {found * 1e6:>12.2f}")


if __name__ == "__main__":
    main()
