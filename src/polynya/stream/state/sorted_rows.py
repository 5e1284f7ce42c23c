"""Rows of one width, sorted by a number: a map from numbers to bytes that takes little more memory
than its content. A `dict` takes five to ten times as much."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from struct import Struct
from typing import Any

LEAF_ROWS = 512  # an insertion moves at most the rows of one leaf


class SortedRows:
    """A map from numbers below 2^64 to values of a fixed width, in the order of the numbers.

    The rows are in leaves of at most `LEAF_ROWS`. Numbers that arrive in order fill them."""

    __slots__ = ("_count", "_firsts", "_numbers", "_values", "_width")

    def __init__(self, value_bytes: int) -> None:
        self._width = value_bytes
        self._numbers: list[array[int]] = []  # of each leaf; none is empty
        self._values: list[bytearray] = []
        self._firsts = array("Q")  # the first number of each leaf
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, number: int) -> bytes | None:
        """Return the value of a number, or None."""
        leaf, row, found = self._find(number)
        if not found:
            return None
        return bytes(self._values[leaf][row * self._width : (row + 1) * self._width])

    def put(self, number: int, value: bytes) -> None:
        """Set the value of a number."""
        leaf, row, found = self._find(number)
        if not found:
            leaf, row = self._with_room(leaf, row)
            self._numbers[leaf].insert(row, number)
            self._firsts[leaf] = self._numbers[leaf][0]
            self._count += 1
        at = row * self._width
        self._values[leaf][at : at + self._width * found] = value

    def remove(self, number: int) -> bool:
        """Remove a number; report whether it was there."""
        leaf, row, found = self._find(number)
        if not found:
            return False
        del self._numbers[leaf][row]
        del self._values[leaf][row * self._width : (row + 1) * self._width]
        self._count -= 1
        if not self._numbers[leaf]:
            del self._numbers[leaf], self._values[leaf], self._firsts[leaf]
            return True
        self._firsts[leaf] = self._numbers[leaf][0]
        self._join(leaf)
        return True

    def rows(self, begin: int = 0) -> Iterator[tuple[int, bytes]]:
        """Iterate over the numbers from `begin` on, and their values, in order. The map must not
        change meanwhile."""
        leaf, row, _ = self._find(begin)
        for numbers, values in zip(self._numbers[leaf:], self._values[leaf:], strict=True):
            data, width = bytes(values), self._width
            for at in range(row, len(numbers)):
                yield numbers[at], data[at * width : (at + 1) * width]
            row = 0

    def unpacked(self, value: Struct) -> Iterator[tuple[Any, ...]]:
        """Iterate over all values as a struct of their width unpacks them."""
        return chain.from_iterable(map(value.iter_unpack, self._values))

    def _find(self, number: int) -> tuple[int, int, bool]:
        """Return (leaf, row, True) of a number; else where to insert it, and False."""
        if not self._numbers:
            return 0, 0, False
        leaf = max(0, bisect_right(self._firsts, number) - 1)
        numbers = self._numbers[leaf]
        row = bisect_left(numbers, number)
        return leaf, row, row < len(numbers) and numbers[row] == number

    def _with_room(self, leaf: int, row: int) -> tuple[int, int]:
        """Make room for a row; return its new position."""
        if not self._numbers:
            self._add_leaf(0, array("Q"), bytearray())
            return 0, 0
        numbers, values = self._numbers[leaf], self._values[leaf]
        if len(numbers) < LEAF_ROWS:
            return leaf, row
        half = LEAF_ROWS if row == LEAF_ROWS else LEAF_ROWS // 2  # numbers arrive in order
        self._add_leaf(leaf + 1, numbers[half:], values[half * self._width :])
        self._numbers[leaf], self._values[leaf] = numbers[:half], values[: half * self._width]
        return (leaf + 1, row - half) if row > half or row == LEAF_ROWS else (leaf, row)

    def _add_leaf(self, leaf: int, numbers: array[int], values: bytearray) -> None:
        self._numbers.insert(leaf, numbers)
        self._values.insert(leaf, values)
        self._firsts.insert(leaf, numbers[0] if numbers else 0)

    def _join(self, leaf: int) -> None:
        """Join a leaf with the next one if both are less than a quarter full."""
        leaf = min(leaf, max(0, len(self._numbers) - 2))
        both = self._numbers[leaf : leaf + 2]
        if len(both) == 2 and all(len(numbers) < LEAF_ROWS // 4 for numbers in both):
            self._numbers[leaf] += self._numbers.pop(leaf + 1)
            self._values[leaf] += self._values.pop(leaf + 1)
            del self._firsts[leaf + 1]
