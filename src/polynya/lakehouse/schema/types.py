"""The types of columns, their names in tables, and their limits. Pure."""

from __future__ import annotations

import re

LONG, DOUBLE, STRING, TIME, BOOLEAN, STRUCT, LIST = (
    "long",
    "double",
    "string",
    "timestamptz",
    "boolean",
    "struct",
    "list",
)
MAP = "map"  # objects with many keys: text to one type of value
DATE = "date"
DECIMAL = "decimal"  # integers beyond 64 bits, up to DECIMAL_DIGITS digits
BINARY = "binary"  # only by a schema
LOCAL_TIME = "timestamp"  # without a zone
INT, FLOAT, UUID = "int", "float", "uuid"  # only declared, as the epochs
JSON = "json"  # any value, as JSON text: declared, or below `DEPTH_MAX` levels
EPOCHS = {"epoch_seconds": 6, "epoch_millis": 3, "epoch_micros": 0}  # 10 to it: micros in one
WHOLE = "whole"  # only in profiles: a whole number spelled as a fraction, like 5.0
WIDE = "wide"  # only in profiles: a 64-bit integer that a double cannot hold
HUGE = "huge"  # only in profiles: a number that no column can hold
DECIMAL_DIGITS = 38
DECIMAL_MAX = 10**DECIMAL_DIGITS - 1
GROUPS = {
    **dict.fromkeys((LONG, DOUBLE, DECIMAL, WHOLE, WIDE, HUGE), "number"),
    **dict.fromkeys((STRING, TIME, DATE), STRING),
    BOOLEAN: BOOLEAN,
    **dict.fromkeys((STRUCT, MAP), STRUCT),
    LIST: LIST,
    BINARY: BINARY,
    LOCAL_TIME: LOCAL_TIME,
    JSON: JSON,
}
# the groups of JSON values that a declared type takes: what does not fit it gets no other column
_NUMBERS, _TEXTS = frozenset({"number"}), frozenset({STRING})
_CLAIMS = {
    **dict.fromkeys((INT, FLOAT), _NUMBERS),
    **dict.fromkeys((UUID, LOCAL_TIME), _TEXTS),
    **dict.fromkeys(EPOCHS, _NUMBERS | _TEXTS),
    JSON: frozenset({"number", STRING, BOOLEAN, STRUCT, LIST, JSON}),
}
_SCALED = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)", re.ASCII)
OUR_COLUMNS = (
    "stream",
    "incarnation",
    "offset",
    "byte_offset",
    "batch",
    "timestamp",
    "append_time",
    "key",
    "headers",
    "value",
)
# of Iceberg's readers: Spark finds no column of such a name, and no other with it
READERS_COLUMNS = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
)
PARTITION_PREFIX = "_by_"  # of the names of a table's partitions: no column has it
LEAVES_MAX = 500  # typed leaf columns of a table; each costs metadata in every file
DEPTH_MAX = 8
NAME_CHARACTERS_MAX = 128
KEYS_MAX = 64  # keys of a struct; an object with more is a map
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
EXACT_MAX = 2**53  # below it a double is exact
# microseconds since 1970 of the years 0001 to 9999 in UTC, as readers know them
TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
_YEARS = r"(\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"  # 0001 to 9999, as readers know them
DATE_PATTERN = rf"^{_YEARS}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"


def scaled(precision: int, scale: int) -> str:
    """Return the type of decimals with a fraction."""
    return f"decimal({precision},{scale})"


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return the precision and the scale of a type of decimals with a fraction, else None."""
    found = _SCALED.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def group_of(kind: str) -> str:
    """Return the group of a type. Types of one group look alike in JSON."""
    return GROUPS.get(kind, kind)


def is_plain(kind: str) -> bool:
    """Report whether samples of JSON can give a column the type."""
    return kind in GROUPS and kind not in (BINARY, LOCAL_TIME, JSON)


def claims(kind: str) -> frozenset[str]:
    """Return the groups of JSON values that a column of a declared type takes, whether they fit or
    not; none of a type that samples give."""
    if digits_of(kind) is not None:
        return _NUMBERS | _TEXTS
    return _CLAIMS.get(kind, frozenset())
