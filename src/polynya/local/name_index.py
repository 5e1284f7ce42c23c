"""A sorted index of a core's live stream names: the cost of a page is independent of their
number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from polynya.base.names import is_public
from polynya.stream.machine import Machine

# initial names per block; a block splits at twice that, so an insert moves a few kilobytes
BLOCK = 512


class SortedNames:
    """A set of names in code point order, as a list of non-empty sorted blocks. A name costs 8 to
    16 bytes, because the machines own the strings."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted(filter(is_public, names))
        self._blocks = [ordered[begin : begin + BLOCK] for begin in range(0, len(ordered), BLOCK)]
        self._firsts = [block[0] for block in self._blocks]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, name: str) -> None:
        """Add a name; a present name is no error, and one that clients must not know is left
        out."""
        if not is_public(name):
            return
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
        """Remove a name; a missing name is no error."""
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
        """Return at most `count` names that start with `prefix` and sort after `after`."""
        number, at = self._first_of(prefix, after)
        found: list[str] = []
        while number < len(self._blocks) and len(found) < count:
            found += self._blocks[number][at : at + count - len(found)]
            if not found[-1].startswith(prefix):
                break
            number, at = number + 1, 0
        # names with the same prefix are adjacent
        end = bisect_left(found, True, key=lambda name: not name.startswith(prefix))
        return found[:end]

    def _first_of(self, prefix: str, after: str) -> tuple[int, int]:
        """Return block and index of the first name that may belong to the page."""
        if not self._blocks:
            return 0, 0
        beyond = prefix <= after
        number, block, at = self._find(after if beyond else prefix)
        if beyond:
            at = bisect_right(block, after)
        return (number, at) if at < len(block) else (number + 1, 0)

    def _find(self, name: str) -> tuple[int, list[str], int]:
        """Return the block of a name, and its index there."""
        number = max(0, bisect_right(self._firsts, name) - 1)
        block = self._blocks[number]
        return number, block, bisect_left(block, name)


def live_names(machine: Machine) -> Iterator[str]:
    """Yield the names of the streams that are not soft-deleted."""
    yield from (name for name, stream in machine.directory.streams.items() if not stream.deleted)
    yield from machine.directory.evicted
