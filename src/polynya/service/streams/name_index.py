"""The names of a core's live streams in order, so that a page of them costs the same however many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

BLOCK = 512  # names of a block as it is made; it is cut in two at twice that, so that putting one in moves some kilobytes


class SortedNames:
    """A set of names in the order of their characters: lists of a few hundred, one after the other, none of them empty. A name costs
    8 to 16 bytes, as the strings are those that the machines have."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted(names)
        self._blocks = [ordered[begin : begin + BLOCK] for begin in range(0, len(ordered), BLOCK)]
        self._firsts = [block[0] for block in self._blocks]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, name: str) -> None:
        """No matter whether it is there."""
        if not self._blocks:
            self._blocks, self._firsts = [[name]], [name]
            return
        number, block, at = self._find(name)
        if at < len(block) and block[at] == name:
            return
        block.insert(at, name)
        self._firsts[number] = block[0]
        if len(block) >= 2 * BLOCK:
            self._blocks[number : number + 1] = block[:BLOCK], block[BLOCK:]
            self._firsts.insert(number + 1, block[BLOCK])

    def discard(self, name: str) -> None:
        """No matter whether it is there."""
        if not self._blocks:
            return
        number, block, at = self._find(name)
        if at == len(block) or block[at] != name:
            return
        del block[at]
        if block:
            self._firsts[number] = block[0]
        else:
            del self._blocks[number], self._firsts[number]

    def page(self, prefix: str, after: str, count: int) -> list[str]:
        """The first names that begin with `prefix` and come after `after`, at most `count`."""
        number, at = self._first_of(prefix, after)
        found: list[str] = []
        while number < len(self._blocks) and len(found) < count:
            found += self._blocks[number][at : at + count - len(found)]
            if not found[-1].startswith(prefix):
                break
            number, at = number + 1, 0
        end = bisect_left(found, True, key=lambda name: not name.startswith(prefix))  # names with one prefix stand together
        return found[:end]

    def _first_of(self, prefix: str, after: str) -> tuple[int, int]:
        """Block and place of the first name that may belong to the page."""
        if not self._blocks:
            return 0, 0
        beyond = prefix <= after
        number, block, at = self._find(after if beyond else prefix)
        if beyond:
            at = bisect_right(block, after)
        return (number, at) if at < len(block) else (number + 1, 0)

    def _find(self, name: str) -> tuple[int, list[str], int]:
        """The block that a name belongs to, and its place there."""
        number = max(0, bisect_right(self._firsts, name) - 1)
        block = self._blocks[number]
        return number, block, bisect_left(block, name)
