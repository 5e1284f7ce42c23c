"""Find records inside a batch by their lengths, which a small body has a million of: lengths are
added in blocks, and only those of one block are listed."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

_BLOCK = 1024  # lengths that are listed at once


def lengths_of(packed: bytes) -> memoryview[int]:
    """Return packed lengths as numbers, without a copy."""
    return memoryview(packed).cast("I")


def holding(
    lengths: memoryview[int], position: int, number: int = 0, begin: int = 0
) -> tuple[int, int]:
    """Return (number, begin) of the record that holds a byte; behind the last one, their count and
    end. The search starts at the record `number`, which begins at `begin`, not behind
    `position`."""
    for first in range(number, len(lengths), _BLOCK):
        block = lengths[first : first + _BLOCK]
        end = begin + sum(block)
        if end > position:
            ends = [*accumulate(block, initial=begin)]
            inner = bisect_right(ends, position, 1) - 1
            return first + inner, ends[inner]
        begin = end
    return len(lengths), begin


def whole_in(lengths: memoryview[int], size: int) -> int:
    """Return how many of the first records are whole in `size` bytes."""
    return len(lengths) if sum(lengths) <= size else holding(lengths, size)[0]
