"""Nonsense for fuzzers, drawn from a seed: numbers and texts at the edges, values that fit a type,
and bytes that were whole once."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

NUMBERS = (
    0, 1, 2, 3, 7, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48, 2**53 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -1, -2, -(2**31), -(2**63),
)  # fmt: skip
TEXTS = (
    "", "x", "default/x", "fuzz/a", "-1", "now", "0", "a" * 300, "\u0000", "\ud7ff", "é", "../..", "a/b/c", "/", "{", "{}", "*", "**", "%2F", "'", '"',
    "\r\n", "node-1", "000000", "\U0001f43b" * 3,
)  # fmt: skip
DEPTH_MAX = 6


class Outcome(msgspec.Struct):
    """Counts and findings of a fuzzer. Each line of `wrong` is a defect, with seed and round."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    wrong: list[str] = []

    def summary(self) -> str:
        return ", ".join(f"{what} {count}" for what, count in self.counts.most_common())


def number(chance: random.Random) -> int:
    drawn = chance.random()
    if drawn < 0.6:
        return chance.choice(NUMBERS)
    return chance.randrange(100) if drawn < 0.85 else chance.randrange(2 ** chance.randrange(1, 64))


def text(chance: random.Random) -> str:
    if chance.random() < 0.7:
        return chance.choice(TEXTS)
    return "".join(
        chr(chance.choice((chance.randrange(32, 127), chance.randrange(0, 0xD7FF))))
        for _ in range(chance.randrange(20))
    )


def noise(chance: random.Random, most: int = 200) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 2, 3, 4, 8, chance.randrange(most + 1))))


def anything(chance: random.Random, depth: int = 0) -> Any:
    """Draw some value that msgpack and JSON can carry."""
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [anything(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind == 7:
        return {text(chance): anything(chance, depth + 1) for _ in range(chance.randrange(4))}
    return (
        None,
        chance.random() < 0.5,
        _packable(number(chance)),
        chance.random() * 1e9,
        text(chance),
        text(chance),
    )[kind]


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Damage some bytes: flip bits, or put in, leave out, double or cut off bytes; now and then
    return something else altogether."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        if not found:
            return noise(chance)
        at = chance.randrange(len(found))
        end = min(len(found), at + chance.choice((1, 2, 4, 16, 256)))
        act = chance.randrange(8)
        if act < 2:
            found[at] ^= 1 << chance.randrange(8)
        elif act == 2:
            found[at:end] = chance.randbytes(end - at)
        elif act == 3:
            del found[at:end]
        elif act == 4:
            found[at:at] = noise(chance, 64)
        elif act == 5:
            found[at:at] = found[at:end]
        elif act == 6:
            del found[at:]
        else:
            found[at:end] = bytes(end - at)
    return bytes(found)


class Shapes:
    """Values that fit types, as plain data for msgpack; `wrong`: how often a part fits none.
    `known`: real values of the tested node, by field name."""

    def __init__(
        self,
        chance: random.Random,
        *,
        wrong: float = 0.0,
        known: dict[str, Sequence[Any]] | None = None,
    ) -> None:
        self.chance, self.wrong, self.known = chance, wrong, known or {}

    def encoded(self, type_: Any) -> bytes:
        return msgspec.msgpack.encode(self.of(type_))

    def of(self, type_: Any) -> Any:
        return self._value(_info(type_), "", 0)

    def _value(self, info: inspect.Type, name: str, depth: int) -> Any:  # noqa: PLR0911
        chance = self.chance
        if chance.random() < self.wrong:
            return anything(chance)
        if name in self.known and chance.random() < 0.7:
            return chance.choice(self.known[name])
        if isinstance(info, inspect.StructType):
            return self._struct(info, depth)
        if isinstance(info, inspect.UnionType):
            return self._value(chance.choice(info.types), name, depth)
        if isinstance(info, inspect.IntType):
            return self._int(info)
        if isinstance(info, inspect.RawType | inspect.AnyType):
            return anything(chance)
        simple = self._simple(info)
        return self._many(info, name, depth) if simple is None else simple[0]

    def _struct(self, info: inspect.StructType, depth: int) -> Any:
        fields = [self._value(field.type, field.encode_name, depth + 1) for field in info.fields]
        if not info.array_like:
            named = dict(zip((field.encode_name for field in info.fields), fields, strict=True))
            return named if info.tag is None else {info.tag_field: info.tag, **named}
        if fields and self.chance.random() < 0.1:  # of another release
            optional = sum(not field.required for field in info.fields)
            fields = (
                fields[: len(fields) - self.chance.randrange(optional + 1)]
                if optional
                else [*fields, anything(self.chance)]
            )
        return fields if info.tag is None else [info.tag, *fields]

    def _int(self, info: inspect.IntType) -> int:
        low = -(2**63) if info.ge is None else info.ge
        high = 2**64 - 1 if info.le is None else info.le
        return _packable(min(max(number(self.chance), low), high))

    def _simple(self, info: inspect.Type) -> tuple[Any] | None:
        chance = self.chance
        found: dict[type, Any] = {
            inspect.StrType: lambda: text(chance),
            inspect.BytesType: lambda: noise(chance),
            inspect.BoolType: lambda: chance.random() < 0.5,
            inspect.FloatType: lambda: chance.choice(
                (0.0, -1.0, 1e308, float("inf"), float("nan"), chance.random())
            ),
            inspect.NoneType: lambda: None,
            inspect.LiteralType: lambda: chance.choice(list(getattr(info, "values", [0]))),
        }
        made = found.get(type(info))
        return None if made is None else (made(),)

    def _many(self, info: inspect.Type, name: str, depth: int) -> Any:
        count = 0 if depth > DEPTH_MAX else self.chance.choice((0, 1, 1, 2, 3))
        if isinstance(info, inspect.TupleType):
            return [self._value(item, name, depth + 1) for item in info.item_types]
        if isinstance(
            info, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType
        ):
            return [self._value(info.item_type, name, depth + 1) for _ in range(count)]
        if isinstance(info, inspect.DictType):
            keys = [self._value(info.key_type, "", depth + 1) for _ in range(count)]
            return {
                key: self._value(info.value_type, name, depth + 1)
                for key in keys
                if not isinstance(key, list | dict)
            }
        return anything(self.chance)


@functools.cache
def _info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


def _packable(found: int) -> int:
    return min(max(found, -(2**63)), 2**64 - 1)
