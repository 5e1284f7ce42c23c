"""Values on the command line: durations and offsets."""

from __future__ import annotations

import re

import click

from polynya.base.offsets import START, parse_token

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,12})\s*([a-z]*)", re.ASCII)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Whole seconds, from `90`, `90s`, `15min`, `12h`, `7d`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in _UNITS:
            self.fail(f"{value!r} is no duration; write 90s, 15min, 12h or 7d", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


DURATION = Duration()


def offset_of(text: str, *, fork: bool = False) -> str:
    """The offset to send for what a user wrote: `start`, `now`, or a token. Raises click.UsageError."""
    if text in ("start", "-1"):
        return START if fork else "-1"
    if (text == "now" and not fork) or parse_token(text):
        return text
    choices = "'start'" if fork else "'start', 'now'"
    raise click.UsageError(f"--offset {text!r} is no offset: it is {choices}, or what a read gave ({START})")
