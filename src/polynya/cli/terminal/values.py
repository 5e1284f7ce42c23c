"""Command-line values: durations, sizes, offsets and start positions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from polynya.base.offsets import START, format_token, parse_token

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """Seconds, from `90`, `0.5`, `90s`, `15min`, `12h`, `7d`."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in _UNITS:
            self.fail(
                f"{value!r} is not a duration; expected a form like 90s, 15min, 12h or 7d",
                param,
                ctx,
            )
        return float(match[1]) * _UNITS[match[2]]


class WholeSeconds(Seconds):
    """Seconds without fractions."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        seconds = super().convert(value, param, ctx)
        if seconds != int(seconds):
            self.fail(f"{value!r} is not a whole number of seconds", param, ctx)
        return int(seconds)


@dataclass(frozen=True)
class Begin:
    """The start of a read: an offset; a time (RFC 3339, or an age from the server's clock); or a
    number of last records."""

    offset: str = ""
    time: str = ""
    last: int | None = None


class BeginType(click.ParamType):  # type: ignore[type-arg]
    """`start`, `now`, an offset, `42` (the number of a record), `-20`, `10m`, `2026-11-01T00:00Z`,
    `2026-11-01`."""

    name = "where"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Begin:
        if isinstance(value, Begin):
            return value
        text = str(value).strip()
        if text in ("start", "now") or parse_token(text):
            return Begin(offset="-1" if text == "start" else text)
        if re.fullmatch(r"\d{1,15}", text, re.ASCII):
            return Begin(offset=format_token(int(text), 0))  # the record number decides
        if re.fullmatch(r"-\d{1,15}", text, re.ASCII):
            return Begin(last=int(text[1:]))
        match = _DURATION.fullmatch(text.lower())
        try:
            if match is not None and match[2] and match[2] in _UNITS:
                return Begin(time=match[1] + match[2])
            return Begin(time=_instant(datetime.fromisoformat(text)))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a start; expected 'start', 'now', an offset, the number of a record "
                "(42), an age (10m), a time (2026-11-01T00:00Z) or -20 (the last 20)",
                param,
                ctx,
            )


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, from `4096`, `64kB`, `8MiB`, `10GB`."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        match = _SIZE.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in _SIZE_UNITS:
            self.fail(
                f"{value!r} is not a size; expected a form like 4096, 64kB, 8MiB or 10GB",
                param,
                ctx,
            )
        return int(float(match[1]) * _SIZE_UNITS[match[2]])


SIZE = Size()
SECONDS = Seconds()
WHOLE_SECONDS = WholeSeconds()
BEGIN = BeginType()


def offset_of(text: str, *, fork: bool = False) -> str:
    """Return the offset for a user's `start`, `now` or token. Raises click.UsageError."""
    if text in ("start", "-1"):
        return START if fork else "-1"
    if (text == "now" and not fork) or parse_token(text):
        return text
    choices = "'start'" if fork else "'start', 'now'"
    raise click.UsageError(
        f"--offset {text!r} is not an offset; expected {choices}, or an offset from a read "
        f"({START})"
    )


def _instant(moment: datetime) -> str:
    """Format a moment for the server; without a zone it is local. Raises ValueError if it is out of
    range."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def toml_text(text: str) -> str:
    """Return a TOML basic string; control characters are escaped as in JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
