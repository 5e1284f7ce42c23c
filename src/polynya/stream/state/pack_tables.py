"""The packs that a group knows, by key, in few bytes each.

A pack of merged slices has two or three entries of a long stream, so a group has nearly as many
packs as entries. The newest ones are objects in a `dict`. Older ones are rows of `SortedRows`, by
half of the random bits of their keys: the rest of a key takes 16 bytes, and values have a fixed
width. What does not fit into a row stays an object."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from itertools import chain, islice
from struct import Struct
from typing import Generic, TypeVar

from polynya.stream.state.model import Pack, PackReference
from polynya.stream.state.sorted_rows import SortedRows

RECENT_MAX = 512  # packs that are objects because they are new

V = TypeVar("V")

# as `wire.pack.pack_key` makes it
_KEY = re.compile(r"(.*/(?:packs|pages)/)([0-9]{8})-([0-9]{2})/(0|[1-9][0-9]{0,4})-([0-9a-f]{32})")
_REST = Struct("<HIH8s")  # number of the prefix, hour as yyyymmddhh, owner group, random
_CODE = Struct("<Q16s")
_U16_MAX, _U32_MAX = 2**16 - 1, 2**32 - 1
_HELD = Struct("<IHI")  # number, owner group, slices
_SLICES = Struct("<16x4x2xI")
_NO_GROUP = _U16_MAX
_PACK = Struct("<q4H")  # written, groups
_PACK_GROUPS_MAX = 4


Code = tuple[int, bytes]  # 64 random bits, and the rest


def is_page_key(key: str) -> bool:
    """Report whether a held object is a page of an index."""
    return key.rpartition("/")[0].rpartition("/")[0].endswith("/pages")


class PackKeys:
    """The codes of pack keys: the same key has the same code, and a code gives its key."""

    __slots__ = ("_numbers", "_prefixes")

    def __init__(self) -> None:
        self._prefixes: list[str] = []  # with the cluster's id; a restore gives it a new one
        self._numbers: dict[str, int] = {}

    def code(self, key: str, *, new: bool = False) -> Code | None:
        """Return the code of a key, or None if it has none. `new`: make one for a new prefix."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        prefix, day, hour, owner_group, random = found.groups()
        number = self._numbers.get(prefix, len(self._prefixes))
        if number == len(self._prefixes):
            if not new:
                return None
            self._numbers[prefix] = number
            self._prefixes.append(prefix)
        at_hour, group = int(day + hour), int(owner_group)
        if number > _U16_MAX or at_hour > _U32_MAX or group > _U16_MAX:
            return None
        rest = _REST.pack(number, at_hour, group, bytes.fromhex(random[16:]))
        return int(random[:16], 16), rest

    def of_pages(self, rows: Iterable[tuple[int, bytes]]) -> Iterator[str]:
        """Yield the keys of the rows that are pages."""
        numbers = {at for at, prefix in enumerate(self._prefixes) if prefix.endswith("/pages/")}
        if not numbers:
            return
        for bits, rest in rows:
            if rest[0] | rest[1] << 8 in numbers:
                yield self.key(bits, rest)

    def key(self, bits: int, rest: bytes) -> str:
        """Return the key of a code. `rest` may have more behind it."""
        number, at_hour, group, random = _REST.unpack_from(rest)
        hour = f"{at_hour:010d}"
        return f"{self._prefixes[number]}{hour[:8]}-{hour[8:]}/{group}-{bits:016x}{random.hex()}"


class PackTable(MutableMapping[str, V], Generic[V]):
    """A map from pack keys to values. A value that was changed must be set again."""

    _VALUE: Struct  # of a row

    def __init__(self, known: Mapping[str, V] | None = None) -> None:
        self._codes = PackKeys()
        self._recent: dict[str, V] = {}  # the newest, in order
        self._odd: dict[str, V] = {}  # older ones that do not fit into a row
        self._rows = SortedRows(_REST.size + self._VALUE.size)
        if known:
            self._load(known)

    @abstractmethod
    def _packed(self, value: V) -> bytes | None:
        """Return a value as a row has it, or None if it does not fit."""

    @abstractmethod
    def _unpacked(self, data: bytes) -> V:
        """Return the value of a row."""

    def __len__(self) -> int:
        return len(self._recent) + len(self._odd) + len(self._rows)

    def __contains__(self, key: object) -> bool:
        if key in self._recent or key in self._odd:
            return True
        return isinstance(key, str) and self._row(key) is not None

    def __getitem__(self, key: str) -> V:
        if key in self._recent:
            return self._recent[key]
        if key in self._odd:
            return self._odd[key]
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        return self._unpacked(row[1])

    def __setitem__(self, key: str, value: V) -> None:
        if key in self._recent:
            self._recent[key] = value
            return
        if key in self._odd or not self._set_row(key, value):
            self._odd.pop(key, None)
            self._recent[key] = value
            if len(self._recent) > RECENT_MAX:
                self._settle(list(islice(self._recent, RECENT_MAX // 2)))

    def __delitem__(self, key: str) -> None:
        if key in self._recent:
            del self._recent[key]
        elif key in self._odd:
            del self._odd[key]
        else:
            row = self._row(key)
            if row is None:
                raise KeyError(key)
            self._rows.remove(row[0][0])

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.pairs())

    def items(self) -> ItemsView[str, V]:
        """Return a view of the keys and values."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values."""
        return _Values(self)

    def pairs(self) -> Iterable[tuple[str, V]]:
        """Yield the keys and values."""
        return chain(self._objects(), map(self._pair, self._rows.rows()))

    def _pair(self, row: tuple[int, bytes]) -> tuple[str, V]:
        bits, data = row
        return self._codes.key(bits, data), self._unpacked(data[_REST.size :])

    def _row(self, key: str) -> tuple[Code, bytes] | None:
        """Return the code and the value of a key that is a row, or None."""
        code = self._codes.code(key) if self._rows else None
        data = None if code is None else self._rows.get(code[0])
        if code is None or data is None or data[: _REST.size] != code[1]:
            return None
        return code, data[_REST.size :]

    def _objects(self) -> Iterator[tuple[str, V]]:
        return chain(self._odd.items(), self._recent.items())

    def _set_row(self, key: str, value: V) -> bool:
        """Change the row of a key; report whether it has one now."""
        row = self._row(key)
        if row is None:
            return False
        (bits, rest), data = row[0], self._packed(value)
        if data is None:
            self._rows.remove(bits)
            return False
        self._rows.put(bits, rest + data)
        return True

    def _load(self, known: Mapping[str, V]) -> None:
        """Take over the packs of a snapshot, in which the newest come last."""
        self._recent = dict(known)
        if len(known) > RECENT_MAX:
            self._settle(list(islice(known, len(known) - RECENT_MAX // 2)))

    def _settle(self, keys: list[str]) -> None:
        """Turn recent packs into rows."""
        found = []
        for key in keys:
            code, data = self._codes.code(key, new=True), self._packed(self._recent[key])
            if code is None or data is None:
                self._odd[key] = self._recent.pop(key)
            else:
                found.append((code, data, key))
        for (bits, rest), data, key in sorted(found):  # keys in order fill the leaves
            value = self._recent.pop(key)
            if self._rows.get(bits) is not None:  # half of the random bits are those of another
                self._odd[key] = value
            else:
                self._rows.put(bits, rest + data)
                self._became_row((bits, rest), value)

    def _became_row(self, code: Code, value: V) -> None:
        """Note that a value is no longer an object."""


class _Items(ItemsView[str, V], Generic[V]):
    """The keys and values of a table, without a look-up for each."""

    _mapping: PackTable[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        return iter(self._mapping.pairs())


class _Values(ValuesView[V], Generic[V]):
    """The values of a table, without a look-up for each."""

    _mapping: PackTable[V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.pairs())


class OwnedPacks(PackTable[Pack]):
    """The packs whose owner group this is. In a row: those with one to four groups."""

    _VALUE = _PACK

    def condemned(self, before_ms: int) -> Iterator[str]:
        """Yield the packs that every group released by `before_ms`. None of them is a row."""
        return (
            key
            for key, pack in self._objects()
            if not pack.groups and pack.condemned_ms <= before_ms
        )

    def some(self, position: int, count: int) -> tuple[list[tuple[str, Pack]], int]:
        """Return the packs that are objects, `count` rows from a position on, and the position
        behind those. 0 is the first position, and the one behind the last."""
        rows = list(islice(self._rows.rows(position), count + 1))
        after = rows[count][0] if len(rows) > count else 0
        return [*self._objects(), *map(self._pair, rows[:count])], after

    def _packed(self, value: Pack) -> bytes | None:
        groups = value.groups
        if (
            not 0 < len(groups) <= _PACK_GROUPS_MAX
            or max(groups) >= _NO_GROUP
            or value.condemned_ms
        ):
            return None
        return _PACK.pack(value.written_ms, *groups, *(_NO_GROUP,) * (4 - len(groups)))

    def _unpacked(self, data: bytes) -> Pack:
        written_ms, *groups = _PACK.unpack(data)
        return Pack([group for group in groups if group != _NO_GROUP], written_ms)


class HeldPacks(PackTable[PackReference]):
    """The packs that indexes of the group reference, in the order of their numbers."""

    _VALUE = _HELD

    def __init__(self, known: Mapping[str, PackReference] | None = None) -> None:
        self._keys: dict[int, str] = {}  # of the packs that are objects
        self._by_number = SortedRows(_CODE.size)  # the codes of those that are rows
        self._last = -1, ""  # neighbours in an index are often in one pack
        super().__init__(known)
        self.by_number: Mapping[int, str] = _KeysByNumber(self)

    def pages(self) -> Iterator[str]:
        """Yield the keys of the pages of indexes."""
        yield from (key for key, _ in self._objects() if is_page_key(key))
        yield from self._codes.of_pages(self._rows.rows())

    @property
    def slices(self) -> int:
        """The number of references."""
        rows: int = sum(slices for (slices,) in self._rows.unpacked(_SLICES))
        return rows + sum(held.slices for _, held in self._objects())

    def key_of(self, number: int) -> str:
        """Return the key of the pack with a number; "" of 0, which is none. Raises KeyError."""
        if not number:
            return ""
        known = self._keys.get(number)
        if known is not None:
            return known
        last, key = self._last
        if last == number:
            return key
        code = self._by_number.get(number)
        if code is None:
            raise KeyError(number)
        bits, rest = _CODE.unpack(code)
        key = self._codes.key(bits, rest)
        self._last = number, key
        return key

    def pairs(self) -> Iterable[tuple[str, PackReference]]:
        """Return the keys and values, by number."""
        pairs = super().pairs()
        return sorted(pairs, key=_by_number)

    def __setitem__(self, key: str, value: PackReference) -> None:
        if key not in self._recent:
            self._keys[value.number] = key  # before it may become a row
        super().__setitem__(key, value)
        if key not in self._recent and key not in self._odd:
            self._keys.pop(value.number, None)

    def __delitem__(self, key: str) -> None:
        number = self[key].number
        super().__delitem__(key)
        self._keys.pop(number, None)
        self._by_number.remove(number)
        self._last = -1, ""

    def _load(self, known: Mapping[str, PackReference]) -> None:
        self._keys = {held.number: key for key, held in known.items()}
        super()._load(known)

    def _became_row(self, code: Code, value: PackReference) -> None:
        self._keys.pop(value.number, None)
        self._by_number.put(value.number, _CODE.pack(*code))

    def _packed(self, value: PackReference) -> bytes | None:
        if value.slices > _U32_MAX or value.number > _U32_MAX or value.owner_group > _U16_MAX:
            return None
        return _HELD.pack(value.number, value.owner_group, value.slices)

    def _unpacked(self, data: bytes) -> PackReference:
        number, owner_group, slices = _HELD.unpack(data)
        return PackReference(owner_group, slices, number)


def _by_number(pair: tuple[str, PackReference]) -> int:
    return pair[1].number


class _KeysByNumber(Mapping[int, str]):
    """A view of the held packs: from number to key."""

    def __init__(self, held: HeldPacks) -> None:
        self._held = held

    def __getitem__(self, number: int) -> str:
        return self._held.key_of(number)

    def __iter__(self) -> Iterator[int]:
        return (held.number for held in self._held.values())

    def __len__(self) -> int:
        return len(self._held)
