"""Find the line of each key in a TOML file, which the standard parser does not report.

It supports tables and dotted keys with plain values. A key in any other form has no line, which is
no error.
"""

from __future__ import annotations

import re

_TABLES = re.compile(r"\s*\[\[([^\[\]]+)\]\]\s*(?:#.*)?")
_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-.\"' \t]+?)\s*=(.*)")
_LONG = re.compile(r'"""|\'\'\'')


def lines_of_keys(text: str) -> dict[str, int]:
    """Return dotted key -> line number, from 1; for an array of tables, that of the first. `text`
    is valid TOML."""
    found: dict[str, int] = {}
    table = ""
    open_quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if open_quote:
            open_quote = "" if open_quote in line else open_quote
        elif match := _TABLES.fullmatch(line):
            found.setdefault(_plain(match[1]), number)
            table = _plain(match[1]) + "[]."
        elif match := _TABLE.fullmatch(line):
            table = _plain(match[1]) + "."
        elif match := _KEY.match(line):
            found[table + _plain(match[1])] = number
            quotes = _LONG.findall(match[2])
            open_quote = quotes[0] if len(quotes) % 2 else ""
    return found


def _plain(key: str) -> str:
    """Return `cold . "root"` as `cold.root`."""
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
