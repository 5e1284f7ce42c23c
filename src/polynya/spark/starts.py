"""The beginnings and ends that options give: offsets as words or numbers, and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import partition_name

EARLIEST, LATEST = "earliest", "latest"
FIRST, TAIL = -2, -1  # Kafka's numbers for the two
_STRATEGY = "startingOffsetsByTimestampStrategy"


class AtTime(msgspec.Struct, frozen=True):
    """The first record of each stream whose time is not before `all_ms`, or that of its own in
    `own_ms`. `strict`: a stream must have such a record."""

    all_ms: int | None = None
    own_ms: dict[str, int] = {}
    strict: bool = False

    def of(self, stream: str) -> int | None:
        return self.own_ms.get(stream, self.all_ms)


Start = str | dict[str, int] | AtTime


def starting(options: Mapping[str, str]) -> Start:
    """Return where a read begins. Raises ConfigError."""
    strategy = options.get(_STRATEGY.lower(), LATEST)
    if strategy not in (LATEST, "error"):
        raise ConfigError(f"{_STRATEGY} is '{strategy}'; expected '{LATEST}' or 'error'")
    return _bound(options, "starting", EARLIEST, strict=strategy == "error")


def ending(options: Mapping[str, str]) -> Start:
    """Return where a batch read ends. Raises ConfigError."""
    return _bound(options, "ending", LATEST, strict=False)


def _bound(options: Mapping[str, str], side: str, default: str, *, strict: bool) -> Start:
    names = [f"{side}{rest}" for rest in ("Timestamp", "OffsetsByTimestamp", "Offsets")]
    given = [name for name in names if name.lower() in options]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} exclude each other: set one of them")
    if not given:
        return default
    name, text = given[0], options[given[0].lower()]
    if name.endswith("Timestamp") and not name.endswith("ByTimestamp"):
        return AtTime(_milliseconds(name, text), strict=strict)
    if name.endswith("Offsets") and text in (EARLIEST, LATEST):
        return text
    numbers = _numbers(name, text)
    if name.endswith("Offsets"):
        return _checked(name, numbers)
    return AtTime(None, numbers, strict)


def _checked(name: str, numbers: dict[str, int]) -> dict[str, int]:
    wrong = [number for number in numbers.values() if number < FIRST]
    if wrong:
        raise ConfigError(
            f"{name} has {wrong[0]}; expected a record number, {FIRST} (earliest) or {TAIL} (latest)"
        )
    return numbers


def _milliseconds(name: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = datetime.min  # noqa: DTZ901 (has no time zone, as is refused)
    if time.tzinfo is None:
        raise ConfigError(
            f"{name} is '{text}'; expected milliseconds since 1970, or a time with its zone such as "
            "2026-11-01T12:00:00Z"
        )
    return int(time.timestamp() * 1000)


def _numbers(name: str, text: str) -> dict[str, int]:
    """Return a number for each stream: `{"shop/orders": 100}`, or Kafka's `{"orders": {"0": 23}}`."""
    try:
        given = msgspec.json.decode(text, type=dict[str, int | dict[str, int]])
    except UNREADABLE:
        words = f"'{EARLIEST}', '{LATEST}' or " if name.endswith("Offsets") else ""
        raise ConfigError(
            f"{name} is '{text}'; expected {words}JSON such as {{\"orders\": 100}}, or "
            '{"topic": {"0": 100}} for partitions of a topic'
        ) from None
    found: dict[str, int] = {}
    for stream, number in given.items():
        if isinstance(number, int):
            found[stream] = number
            continue
        for partition, own in number.items():
            if not (partition.isascii() and partition.isdecimal()):
                raise ConfigError(f"{name} has the partition '{partition}'; expected a number")
            found[partition_name(stream, int(partition))] = own
    return found
