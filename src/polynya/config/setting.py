"""The record that describes one setting, and the parsers of its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from polynya.base.names import DISKLESS, PROFILES, REPLICATED
from polynya.config.cluster_settings import parse_address, parse_cluster_id, parse_nodes

PREFIX = "POLYNYA_"
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SECONDS_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_text(text: str) -> str:
    """Return any text unchanged."""
    return text


def parse_profile(text: str) -> str:
    """Parse the name of a profile of streams."""
    if text not in PROFILES:
        raise ValueError(f"expected {' or '.join(PROFILES)}")
    return text


def parse_default_profile(text: str) -> str:
    """Parse a profile that streams may have unless their creation names another."""
    if text not in (REPLICATED, DISKLESS):
        raise ValueError(f"expected {REPLICATED} or {DISKLESS}")
    return text


def parse_count(text: str) -> int:
    """Parse a whole number."""
    if not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        raise ValueError("expected a whole number")
    return int(text)


def parse_ratio(text: str) -> float:
    """Parse a part of a whole, such as `0.01`."""
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?", text.strip(), re.ASCII):
        raise ValueError("expected a number from 0 to 1, such as 0.01")
    return float(text)


def parse_switch(text: str) -> bool:
    """Parse `true` or `false` (also 1, 0, yes, no, on, off)."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected true or false")


def parse_size(text: str) -> int:
    """Parse a size in bytes: a bare number, or one with a unit, as in `8MiB` or `64 kB`."""
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError("expected a size such as 8388608, 8MiB or 64kB")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds: a bare number, or one with a unit, as in `500ms`, `1s`,
    `5min`."""
    return _duration(text, bare=1.0)


def parse_millis(text: str) -> int:
    """Parse a duration in milliseconds: a bare number, or one with a unit, as in `500ms`, `1s`,
    `5min`."""
    return round(_duration(text, bare=0.001) * 1000)


def _duration(text: str, *, bare: float) -> float:
    match = _NUMBER_UNIT.fullmatch(text)
    unit = None if match is None else bare if not match[2] else _SECONDS_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError("expected a duration such as 1s, 500ms or 5min")
    return float(match[1]) * unit


class Setting(msgspec.Struct, frozen=True):
    """One setting. The variable and the flag follow from the key; `doc` explains a default of
    None."""

    parse: Callable[[str], Any]
    key: str  # path in `Config` and in the TOML file
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    secret: bool = False  # never shown and no flag, as every process can read a command line

    @property
    def env(self) -> str:
        return PREFIX + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str | None:
        return None if self.secret else "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def kind(self) -> str:
        """Return the type as the docs name it."""
        if self.choices:
            return " \\| ".join(self.choices)
        return _KINDS[self.parse]

    def read(self, text: str) -> Any:
        """Return the value. Raise ValueError with the expected form."""
        value = self.parse(text)
        if self.choices and value not in self.choices:
            raise ValueError("expected one of " + ", ".join(self.choices))
        if self.low is not None and value < self.low:
            raise ValueError(f"expected at least {self.low:g}")
        if self.high is not None and value > self.high:
            raise ValueError(f"expected at most {self.high:g}")
        return value


_KINDS: dict[Callable[[str], Any], str] = {
    parse_text: "text",
    parse_count: "number",
    parse_ratio: "number",
    parse_profile: "profile",
    parse_default_profile: "profile",
    parse_switch: "true \\| false",
    parse_cluster_id: "hexadecimal",
    parse_nodes: "nodes",
    parse_address: "HOST:PORT",
    parse_size: "size",
    parse_seconds: "duration (s)",
    parse_millis: "duration (ms)",
}

# what declares a setting of each type
text = partial(Setting, parse_text)
count = partial(Setting, parse_count)
ratio = partial(Setting, parse_ratio)
profile = partial(Setting, parse_profile)
default_profile = partial(Setting, parse_default_profile)
switch = partial(Setting, parse_switch)
cluster_id = partial(Setting, parse_cluster_id)
nodes = partial(Setting, parse_nodes)
address = partial(Setting, parse_address)
size = partial(Setting, parse_size)
seconds = partial(Setting, parse_seconds)
millis = partial(Setting, parse_millis)
