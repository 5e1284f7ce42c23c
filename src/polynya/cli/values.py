"""Values on the command line: durations, sizes and offsets."""

from __future__ import annotations

import re

import click

from polynya.base.offsets import START, parse_token

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """Seconds, from `90`, `0.5`, `90s`, `15min`, `12h`, `7d`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in _UNITS:
            self.fail(f"{value!r} is no duration; write 90s, 15min, 12h or 7d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class WholeSeconds(Seconds):
    """The same, but no fractions of a second."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        seconds = super().convert(value, param, ctx)
        if seconds != int(seconds):
            self.fail(f"{value!r} is no whole number of seconds", param, ctx)
        return int(seconds)


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, from `4096`, `64kB`, `8MiB`, `10GB`."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in _SIZE_UNITS:
            self.fail(f"{value!r} is no size; write 4096, 64kB, 8MiB or 10GB", param, ctx)
        return int(float(match[1]) * _SIZE_UNITS[match[2]])


SIZE = Size()
SECONDS = Seconds()
WHOLE_SECONDS = WholeSeconds()


def offset_of(text: str, *, fork: bool = False) -> str:
    """The offset to send for what a user wrote: `start`, `now`, or a token. Raises click.UsageError."""
    if text in ("start", "-1"):
        return START if fork else "-1"
    if (text == "now" and not fork) or parse_token(text):
        return text
    choices = "'start'" if fork else "'start', 'now'"
    raise click.UsageError(f"--offset {text!r} is no offset: it is {choices}, or what a read gave ({START})")
