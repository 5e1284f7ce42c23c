"""Output for people and scripts: data to stdout, notices to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from polynya.cli.terminal import exits

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
    for line in columns(heads, rows, grouped=grouped) if rows else ():
        click.echo(line)


def columns(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    grouped: bool = True,
    figures: bool = False,
) -> list[str]:
    """Return aligned columns as lines, numbers to the right; with `figures` all but the first."""
    texts = [list(heads)] + [[_text(cell, grouped=grouped) for cell in row] for row in rows]
    held = [[row[at] for row in rows if row[at] is not None] for at in range(len(heads))]
    right = [
        (figures and at > 0)
        or (bool(cells) and all(isinstance(cell, int | float) for cell in cells))
        for at, cells in enumerate(held)
    ]
    widths = [max(len(line[at]) for line in texts) for at in range(len(heads))]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in texts
    ]


def confirm(question: str, nothing: str) -> None:
    """Ask for confirmation. Raises `click.Abort` for no, `exits.Misused` without an answer, which
    says that `nothing` was done."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise exits.Misused(f"{nothing}: answer 'y', or pass --yes") from None


def listing(
    rows: Sequence[Any],
    heads: Sequence[str],
    cells: Sequence[str] | Callable[[Any], Sequence[object]],
    nothing: str,
    *,
    as_json: bool,
    lines: bool = False,
) -> None:
    """Write rows as one JSON list, with `lines` as one object each, or as a table; say `nothing` if
    there are none. `cells`: the keys of a row, or a function that returns its cells."""
    if as_json:
        for value in rows if lines else [rows]:
            json_line(value)
    elif rows:
        shown = cells if callable(cells) else partial(_at, cells)
        table(heads, [shown(row) for row in rows])
    else:
        notice(nothing)


def properties(pairs: Iterable[tuple[str, object]], width: int = 17) -> None:
    """Write a line for each name and value; names are padded to `width`."""
    for name, value in pairs:
        click.echo(f"{name.replace('_', ' '):<{width}}{value}")


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


def _at(keys: Sequence[str], row: Mapping[str, object]) -> list[object]:
    return [row[key] for key in keys]


def _text(cell: object, *, grouped: bool = True) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if grouped and isinstance(cell, int) else visible(str(cell))
