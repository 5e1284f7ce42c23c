"""Rows of Spark as records: the column `value`, or an object of all columns, and the key, headers
and time that go with it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from polynya.base.errors import ConfigError, PolynyaError

FIELDS = ("key", "headers", "timestamp")  # columns beside `value` that a record has
# where a record was: Polynya's source has these columns, and the target gives new ones
PLACES = ("incarnation", "offset", "byte_offset", "batch", "append_time")
_ENCODER = msgspec.json.Encoder(decimal_format="number")

Convert = Callable[[Any, str], Any]


def is_whole(names: list[str]) -> bool:
    """Report whether rows with these columns are written as whole records."""
    return "value" in names and any(name in names for name in FIELDS)


def check_names(names: list[str]) -> None:
    """Raise ConfigError for columns beside `value` that a record cannot hold."""
    if "value" not in names:
        return
    others = [name for name in names if name not in ("stream", "value", *FIELDS, *PLACES)]
    if others:
        raise ConfigError(
            f"a record of the column 'value' has no room for {', '.join(others)}: drop these "
            "columns, or put them into 'value' (to_json(struct(*)))"
        )


def records_of(batch: pa.RecordBatch) -> Iterator[bytes | None]:
    """Yield the JSON of each row, as a value or a whole record; None for one without a value.
    Raises ConfigError, PolynyaError."""
    names = batch.schema.names
    check_names(names)
    if "value" not in names:
        yield from _objects(batch)
        return
    values = [_bytes(value) for value in batch.column("value").to_pylist()]
    if not is_whole(names):
        yield from values
        return
    keys = batch.column("key").to_pylist() if "key" in names else [None] * len(batch)
    headers = batch.column("headers").to_pylist() if "headers" in names else [None] * len(batch)
    times = _times(batch.column("timestamp")) if "timestamp" in names else [None] * len(batch)
    for value, key, named, time in zip(values, keys, headers, times, strict=True):
        yield None if value is None and key is None else _whole(value, key, named, time)


def _whole(value: bytes | None, key: Any, headers: Any, time: int | None) -> bytes:
    record: dict[str, Any] = {"value": None if value is None else msgspec.Raw(value)}
    if key is not None:
        record["key"] = _text(key)
    if headers:
        record["headers"] = [[name, _text(held)] for name, held in map(_header, headers)]
    if time is not None:
        record["timestamp"] = time
    return _ENCODER.encode(record)


def _header(header: Any) -> tuple[str, Any]:
    """Return the name and value of a header: an entry of a map, or a struct (key, value)."""
    if isinstance(header, dict) and {"key", "value"} == header.keys():
        header = (header["key"], header["value"])
    if not isinstance(header, tuple) or not isinstance(header[0], str):
        raise ConfigError(
            "the column 'headers' must be an array of struct<key: string, value: binary>, or a map "
            "with keys of string"
        )
    return header


def _text(value: Any) -> Any:
    """Return bytes of a key or a header as the JSON of a whole record."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes | bytearray):
        raise ConfigError(
            f"a key or header has the type {type(value).__name__}; expected string or binary: cast it"
        )
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"$base64": base64.b64encode(value).decode()}


def _times(column: pa.Array) -> list[int | None]:
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        raise ConfigError(
            f"the column 'timestamp' has the type {column.type}; expected a timestamp with the "
            "session's time zone: cast it to timestamp"
        )
    micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return [None if time is None else time // 1000 for time in micros.to_pylist()]


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _objects(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield the columns but `stream` as an object: maps are objects, decimals numbers, binary is
    base64. JSON has no NaN: it is refused."""
    names = [name for name in batch.schema.names if name != "stream"]
    columns = [
        _converted(batch.column(name).to_pylist(), _convert(batch.schema.field(name).type), name)
        for name in names
    ]
    for row in zip(*columns, strict=True):
        yield _ENCODER.encode(dict(zip(names, row, strict=True)))


def _converted(values: list[Any], convert: Convert | None, name: str) -> list[Any]:
    return values if convert is None else [convert(value, name) for value in values]


def _convert(kind: pa.DataType) -> Convert | None:
    """Return what makes JSON of a column's values, or None if they need nothing."""
    if pa.types.is_floating(kind):
        return _finite
    if pa.types.is_map(kind):
        inner = _convert(kind.item_type)
        return lambda entries, path: _object(entries, path, inner)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _convert(kind.value_type)
        if element is None:
            return None
        return lambda values, path: values and [element(value, f"{path}[]") for value in values]
    if pa.types.is_struct(kind):
        within = {field.name: made for field in kind if (made := _convert(field.type))}
        return (lambda value, path: _struct(value, path, within)) if within else None
    return None


def _object(entries: Any, path: str, inner: Convert | None) -> Any:
    if entries is None:
        return None
    return {_key(key): inner(value, f"{path}.{key}") if inner else value for key, value in entries}


def _struct(value: Any, path: str, within: dict[str, Convert]) -> Any:
    if value is None:
        return None
    return value | {name: made(value[name], f"{path}.{name}") for name, made in within.items()}


def _key(key: Any) -> str:
    """Return a map's key as that of an object, spelled as its JSON."""
    if isinstance(key, str):
        return key
    return str(key) if isinstance(key, Decimal) else _ENCODER.encode(key).decode().strip('"')


def _finite(value: float | None, path: str) -> float | None:
    if value is not None and not math.isfinite(value):
        raise PolynyaError(
            f"the column '{path}' has the value {value}, which JSON cannot hold: replace it "
            "(nanvl) or filter such rows before the write"
        )
    return value
