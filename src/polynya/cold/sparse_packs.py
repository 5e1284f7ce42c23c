"""Choose packs that are too small and too many, and the slices that keep them. Pure.

An interval of a core's diskless streams is a pack, however few bytes it has. A stream that is
written rarely keeps each pack that has a slice of it. Such slices move together into one pack, also
those that have no neighbours to be merged with. The smallest packs are chosen first, so a byte moves
once for each size that its pack grows to.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

Segment = tuple[int, int]  # entry numbers: first, end (exclusive)

PACKS_SPARE = 32  # packs of a core beyond those that its bytes fill
FULL_SHARE = 0.8  # of a pack's size: fuller packs stay


class PackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one pack of merged slices has, the packs of a core beyond those that its bytes
    fill, and the most bytes and slices that move at once."""

    pack_bytes: int
    pack_slices: int
    spare: int
    bytes_max: int
    slices_max: int

    def wanted(self, size: int) -> int:
        """Return how many packs a core may have for so many bytes."""
        return self.spare + size * 6 // (5 * self.pack_bytes)

    def filled(self, size: int, slices: int) -> int:
        """Return how many packs so many bytes and slices fill."""
        return max(-(-size // self.pack_bytes), -(-slices // self.pack_slices))


def choose_packs(live: Mapping[str, tuple[int, int]], limits: PackLimits) -> list[str]:
    """Return the packs to empty, by the bytes and slices that are alive in each pack.

    None if there are not too many, or if their slices would fill half as many again. Else so many
    that half of the spare packs are free again."""
    wanted = limits.wanted(sum(size for size, _ in live.values()))
    if len(live) <= wanted:
        return []
    chosen: list[str] = []
    filled = total = slices = 0
    for key in sorted(live, key=lambda key: (*live[key], key)):
        size, count = live[key]
        total, slices = total + size, slices + count
        if total > limits.bytes_max or slices > limits.slices_max:
            break
        if size > FULL_SHARE * limits.pack_bytes:
            break
        chosen.append(key)
        filled = limits.filled(total, slices)
        if len(live) - len(chosen) + filled <= wanted - limits.spare // 2:
            break
    return chosen if is_worth(len(chosen), filled) else []


def is_worth(emptied: int, written: int) -> bool:
    """Report whether so many packs may be replaced by those. With less gain, slices that cannot be
    in fewer packs would move without end."""
    return emptied >= 2 * max(written, 1)


def runs_in(
    packs: Sequence[str],
    lengths: Sequence[int],
    segments: Iterable[Segment],
    chosen: Container[str],
    bytes_max: int,
) -> Iterator[Segment]:
    """Yield the runs of entries whose packs are chosen. Each becomes one slice of at most
    `bytes_max`. `packs` has the key of each entry's pack."""
    for begin, end in segments:
        first, size = begin, 0
        for at in range(begin, end):
            if packs[at] not in chosen:
                if first < at:
                    yield first, at
                first, size = at + 1, 0
                continue
            if size + lengths[at] > bytes_max and first < at:
                yield first, at
                first, size = at, 0
            size += lengths[at]
        if first < end:
            yield first, end
