"""Bindings: the streams that a reducer is for, and how often it publishes. Pure."""

from __future__ import annotations

import re

import msgspec

from polynya.base.limits import (
    MIB,
    REDUCER_FUEL_MAX,
    REDUCER_MEMORY_BYTES_MAX,
    REDUCER_SECONDS_MIN,
)
from polynya.reducers.builtins import BUILTINS, LATEST
from polynya.reducers.keys import check_pointer

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
NAME_RULE = (
    "the name of a reducer is 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or digit"
)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A binding as it is asked for: streams by a pattern, a builtin or the SHA-256 of a module, and
    the thresholds of a publish, of which one is enough."""

    pattern: str
    builtin: str = ""
    module: str = ""
    key: str = ""  # JSON pointer of the keys of `latest`
    every_records: int = 10_000
    every_bytes: int = 8 * MIB
    every_seconds: int = 300
    memory: int = 64 * MIB  # of a module
    fuel: int = 10_000_000_000  # of a module, for a MiB of records
    retain: bool = False  # the streams keep no more records than this reducer's snapshots need


class Binding(Wanted, frozen=True, kw_only=True):
    """A binding as it is stored. Another `revision` computes another state; `stopped` is the reason
    why it publishes no more."""

    revision: int
    stopped: str = ""

    def origin(self, name: str) -> str:
        """Return the origin of its snapshots."""
        return f"{name}@{self.revision}"


def check(wanted: Wanted) -> str:
    """Return why a binding is not valid; "": it is. The pattern is judged elsewhere."""
    if bool(wanted.builtin) == bool(wanted.module):
        return f"name either a builtin ({', '.join(BUILTINS)}) or a module"
    if wanted.builtin and wanted.builtin not in BUILTINS:
        return f"'{wanted.builtin[:64]}' is no builtin: {', '.join(BUILTINS)}"
    if wanted.module and not _SHA256.fullmatch(wanted.module):
        return "a module is named by its SHA-256, 64 hexadecimal digits: see PUT /v1/modules"
    if wanted.key and wanted.builtin != LATEST:
        return f"a key is for the builtin '{LATEST}' alone"
    return check_pointer(wanted.key) or _check_numbers(wanted)


def _check_numbers(wanted: Wanted) -> str:
    for name, least, most in (
        ("every_records", 1, 10**12),
        ("every_bytes", 1, 1024 * 1024 * MIB),
        ("every_seconds", REDUCER_SECONDS_MIN, 366 * 86_400),
        ("memory", MIB, REDUCER_MEMORY_BYTES_MAX),
        ("fuel", 1_000_000, REDUCER_FUEL_MAX),
    ):
        number = getattr(wanted, name)
        if not least <= number <= most:
            return f"{name} is {number:,}; it must be {least:,} to {most:,}"
    return ""


def is_same(one: Wanted, other: Wanted) -> bool:
    """Report whether both compute the same states."""
    return (one.builtin, one.module, one.key, one.memory, one.fuel) == (
        other.builtin,
        other.module,
        other.key,
        other.memory,
        other.fuel,
    )
