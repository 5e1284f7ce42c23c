"""The definition of a derived table: its transform, its input, and how the rows of its jobs are merged.
Its stored text is in docs/formats/tables.md."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from polynya.base.msgpack import UNREADABLE

CHARACTERS_MAX = 64 << 10  # it is state of the meta group
KEYS_MAX = 16
DELAY_MS_MAX = 3_660 * 86_400_000  # ten years
FUNCTIONS = ("sum", "min", "max")
_STORED = "derive:"  # before the JSON of a table that is more than a statement or a function
_PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


class BadTransform(ValueError):
    """The definition is not valid; the message gives the reason."""


class _Input(msgspec.Struct):
    """The members of a stored text that rules read, whatever others a later release adds."""

    table: str = ""


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A derived table. Without a key the rows of each job are added to the table."""

    source: str  # "sql:STATEMENT" or "python:MODULE:FUNCTION"
    key: list[str] = []  # columns by which rows are merged
    merge: dict[str, str] = {}  # column: one of FUNCTIONS; the others have those of the last row
    latest_by: str = ""  # the last row has the largest value of this column
    time: str = ""  # column of the watermark …
    delay_ms: int = 0  # … which is so far behind its largest value
    table: str = ""  # uid of the table whose rows are the input; "": records of streams
    whole: bool = False  # rows of that table change: each job transforms all of them

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]

    @property
    def code(self) -> str:
        """Return the statement, or MODULE:FUNCTION."""
        return self.source.partition(":")[2]

    def __str__(self) -> str:
        """Return the stored text."""
        if self == Transform(self.source):
            return self.source
        return _STORED + msgspec.json.encode(self, order="deterministic").decode()


def parse_transform(text: str) -> Transform:
    """Return the definition of a stored text. Raises BadTransform."""
    if len(text) > CHARACTERS_MAX:
        raise BadTransform(f"the transform has {len(text)} characters; at most {CHARACTERS_MAX}")
    if not text.startswith(_STORED):
        return checked(Transform(text))
    try:
        found = msgspec.json.decode(text.removeprefix(_STORED), type=Transform)
    except UNREADABLE as bad:
        raise BadTransform(f"the definition of the derived table is not valid: {bad}") from None
    return checked(found)


def source_table(text: str) -> int:
    """Return the uid of the table whose rows are the input of a stored text; 0: there is none."""
    if not text.startswith(_STORED):
        return 0
    try:
        table = msgspec.json.decode(text.removeprefix(_STORED), type=_Input).table
    except UNREADABLE:
        return 0
    return int(table) if table.isdecimal() and table.isascii() and len(table) <= 20 else 0


def checked(made: Transform) -> Transform:
    """Return a definition that is valid. Raises BadTransform."""
    kind, colon, code = made.source.partition(":")
    if not (colon and kind in ("sql", "python") and code.strip()):
        raise BadTransform("a transform is 'sql:' and a statement, or 'python:MODULE:FUNCTION'")
    if kind == "python" and not _PYTHON.fullmatch(code):
        raise BadTransform(f"'{code}' names no function; expected MODULE:FUNCTION")
    _check_input(made)
    for column, function in made.merge.items():
        if function not in FUNCTIONS:
            raise BadTransform(
                f"'{function}' merges no column; expected {', '.join(FUNCTIONS)}, for example "
                f"{column}:sum; a column without one has the value of the last row"
            )
    needs_key: dict[str, Any] = {"a merge": made.merge, "a latest row": made.latest_by}
    for what, given in (needs_key | {"a watermark": made.time}).items():
        if given and not made.key:
            raise BadTransform(f"{what} is for a table with a key; name the columns of its key")
    if len(made.key) > KEYS_MAX or len(set(made.key)) < len(made.key):
        raise BadTransform(f"a key has at most {KEYS_MAX} columns, each once")
    if not all(made.key) or not all(made.merge):
        raise BadTransform("a column of the key or the merge has no name")
    if both := sorted(set(made.key) & {*made.merge, made.latest_by}):
        raise BadTransform(f"'{both[0]}' is in the key: it cannot be merged or tell the last row")
    if not 0 <= made.delay_ms <= DELAY_MS_MAX:
        raise BadTransform(
            f"the watermark is {made.delay_ms} ms behind; expected 0 to {DELAY_MS_MAX}"
        )
    if made.time and made.time not in made.key:
        raise BadTransform(
            f"the watermark's column '{made.time}' is not in the key: a row that it closes could get "
            "another time later; add it to the key"
        )
    return made


def _check_input(made: Transform) -> None:
    if made.table and not (made.table.isdecimal() and made.table.isascii()):
        raise BadTransform(f"'{made.table}' is no uid of a table; expected a number")
    if made.whole and not made.table:
        raise BadTransform("only a transform of a table's rows can be of all of them")
    if made.whole and made.key:
        raise BadTransform(
            "rows of the source table change, so each job computes all rows again and merges none: "
            "leave the key out, and group by it in the statement"
        )
