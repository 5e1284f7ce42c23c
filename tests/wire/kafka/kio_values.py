"""Random messages of kio, the second opinion on the codecs, and the same messages as ours."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import importlib
import random
import types
import typing
import uuid
from typing import Any

from kio.static.primitive import Records

from polynya.wire.kafka import messages


def kio_class(api: messages.Api, version: int, side: str) -> type:
    """The class of kio for a side, `request` or `response`."""
    snake = "".join("_" + each.lower() if each.isupper() else each for each in api.name).lstrip("_")
    module = importlib.import_module(f"kio.schema.{snake}.v{version}.{side}")
    return getattr(module, f"{api.name}{side.capitalize()}")


def random_kio(kind: Any, rng: random.Random) -> Any:
    """Return a random value of a type of kio."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(each for each in arguments if each is not type(None))
        return None if rng.random() < 0.25 else random_kio(inner, rng)
    if origin is tuple:
        return tuple(random_kio(arguments[0], rng) for _ in range(rng.choice((0, 1, 2, 3))))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {each.name: random_kio(hints[each.name], rng) for each in dataclasses.fields(kind)}
        return kind(**fields)
    if issubclass(kind, enum.Enum):
        return rng.choice(list(kind))
    if kind is bool:
        return rng.random() < 0.5
    if issubclass(kind, dt.timedelta):
        return dt.timedelta(milliseconds=rng.randrange(2**31))
    if issubclass(kind, dt.datetime):
        return dt.datetime.fromtimestamp(rng.randrange(2**31), dt.UTC)
    if issubclass(kind, uuid.UUID):
        return uuid.UUID(int=rng.getrandbits(128) | 1)
    if issubclass(kind, str):
        return "".join(rng.choice("aé-z0") for _ in range(rng.choice((0, 1, 7, 200))))
    if issubclass(kind, int):
        return rng.choice((kind.__low__, max(-1, kind.__low__), 0, 1, kind.__high__))
    if issubclass(kind, float):
        return rng.choice((0.0, -1.5, 1e300))
    assert issubclass(kind, bytes), kind
    return rng.randbytes(rng.choice((0, 1, 127, 300)))


def as_ours(value: Any, kind: Any, *, request: bool) -> Any:
    """Return a value of kio as our type has it."""
    if value is None:
        if kind is bytes:
            return bytes(16)
        return -1 if typing.get_origin(kind) is typing.Annotated else None
    if dataclasses.is_dataclass(value):
        kind = _bare(kind)
        hints = typing.get_type_hints(kind, include_extras=True)
        made = kind()
        for each in dataclasses.fields(value):
            name = each.name if each.name in hints else f"{each.name}_ms"
            setattr(made, name, as_ours(getattr(value, each.name), hints[name], request=request))
        return made
    if isinstance(value, tuple):
        return [as_ours(each, typing.get_args(_bare(kind))[0], request=request) for each in value]
    if isinstance(value, dt.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes) and _bare(kind) is bytes:
        return bytes(value)
    if isinstance(value, Records | bytes):
        return memoryview(bytes(value)) if request else [bytes(value)]
    return value


def _bare(kind: Any) -> Any:
    """Return the type without `| None`."""
    arguments = typing.get_args(kind)
    return (
        next(each for each in arguments if each is not type(None))
        if isinstance(kind, types.UnionType)
        else kind
    )


def kio_of(kind: Any, value: Any) -> Any:
    """Return a value of kio from plain ones: dicts, lists, and times in milliseconds."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        inner = next(each for each in arguments if each is not type(None))
        return kio_of(inner, value)
    if origin is tuple:
        return tuple(kio_of(arguments[0], each) for each in value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        assert isinstance(kind, type)
        return kind(**{name: kio_of(hints[name], each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, dt.timedelta):
        return dt.timedelta(milliseconds=value)
    if isinstance(kind, type) and issubclass(kind, uuid.UUID):
        return uuid.UUID(bytes=value)
    return value
