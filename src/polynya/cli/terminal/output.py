"""Output for people and scripts: data to stdout, notices to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

above: Callable[[str], None] | None = None  # prints notices above a progress line


def data(raw: bytes) -> None:
    """Write bytes to stdout unchanged, and flush."""
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def json_line(value: Any) -> None:
    """Write one JSON value and a newline to stdout."""
    import msgspec

    data(msgspec.json.encode(value) + b"\n")


def notice(text: str) -> None:
    """Write a line to stderr."""
    if above is None:
        click.echo(text, err=True)
    else:
        above(text)


def outcome(value: Any, text: str, *, as_json: bool) -> None:
    """Tell what a command did: as a JSON line, or in words as a notice."""
    if as_json:
        json_line(value)
    else:
        notice(text)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, grouped: bool = True) -> None:
    """Write aligned columns to stdout, numbers to the right; nothing without rows. Digits are
    `grouped` unless they are data, such as years and ids."""
    if not rows:
        return
    texts = [list(heads)] + [[_text(cell, grouped=grouped) for cell in row] for row in rows]
    held = [[row[at] for row in rows if row[at] is not None] for at in range(len(heads))]
    right = [bool(cells) and all(isinstance(cell, int | float) for cell in cells) for cells in held]
    widths = [max(len(line[at]) for line in texts) for at in range(len(heads))]
    for line in texts:
        cells = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a count: `1 record`, `2,000 records`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable: the loop returns")


def visible(text: str) -> str:
    """Escape control characters in foreign text: they could move the cursor or fake lines."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "replace").decode("ascii")
        for char in text
    )


def _text(cell: object, *, grouped: bool = True) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if grouped and isinstance(cell, int) else visible(str(cell))
