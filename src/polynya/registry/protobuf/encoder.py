"""Encode the model of a .proto file as a descriptor. Custom options are left out: their numbers are
in the files that define them."""

from __future__ import annotations

import re

from polynya.registry.protobuf import options
from polynya.registry.protobuf.descriptor import json_name
from polynya.registry.protobuf.model import SCALARS, Enum, Field, File, Message, Service, Types
from polynya.registry.protobuf.wire import Writer

_MESSAGE, _ENUM = 11, 14
_LABELS = {"": 1, "optional": 1, "required": 2, "repeated": 3}
_RANGE = re.compile(r"(-?\w+)(?: to (-?\w+))?")
_FIELD_NUMBERS_END, _ENUM_NUMBERS_END = 2**29, 2**31 - 1


def write_file(file: File, types: Types, name: str) -> bytes:
    """Return the descriptor of a file whose types are resolved."""
    made = Writer()
    made.text(1, name)
    if file.package:
        made.text(2, file.package)
    for path, _ in file.imports:
        made.text(3, path)
    for at, (_, kind) in enumerate(file.imports):
        if kind:
            made.number(10 if kind == "public" else 11, at)
    scope = f".{file.package}" if file.package else ""
    for message in file.messages:
        made.data(4, _message(message, file, types, f"{scope}.{message.name}"))
    for enum in file.enums:
        made.data(5, _enum(enum))
    for service in file.services:
        made.data(6, _service(service))
    if file.options:
        made.data(8, options.write(options.FILE, file.options))
    if file.syntax != "proto2":
        made.text(12, file.syntax if file.syntax == "proto3" else "editions")
    return made.done()


def _message(message: Message, file: File, types: Types, scope: str) -> bytes:
    made = Writer()
    made.text(1, message.name)
    oneofs = [*message.oneofs]
    oneofs += [
        f"_{field.name}"
        for field in message.fields
        if field.label == "optional" and file.syntax != "proto2"
    ]
    numbers = {name: at for at, name in enumerate(oneofs)}
    for field in message.fields:
        made.data(2, _field(field, file, types, scope, numbers))
    for inner in message.messages:
        made.data(3, _message(inner, file, types, f"{scope}.{inner.name}"))
    for field in message.fields:
        if field.key:
            made.data(3, _entry(field, types))
    for enum in message.enums:
        made.data(4, _enum(enum))
    for each in message.extensions:
        for begin, end in _ranges(each, _FIELD_NUMBERS_END - 1):
            made.data(5, _bounds(begin, end + 1))
    if message.options:
        made.data(7, options.write(options.MESSAGE, message.options))
    for name in oneofs:
        inner_oneof = Writer()
        inner_oneof.text(1, name)
        made.data(8, inner_oneof.done())
    _reserved(made, message.reserved, (9, 10), _FIELD_NUMBERS_END - 1, excluded=1)
    return made.done()


def _field(field: Field, file: File, types: Types, scope: str, numbers: dict[str, int]) -> bytes:
    made = Writer()
    made.text(1, field.name)
    made.number(3, field.number)
    made.number(4, 3 if field.key else _LABELS[field.label])
    if field.key:
        made.number(5, _MESSAGE)
        made.text(6, f"{scope}.{_entry_name(field)}")
    else:
        _type(made, field.type, types)
    if field.default is not None:
        is_text = field.type in ("string", "bytes")
        made.text(7, options.unquoted(field.default) if is_text else field.default)
    if field.options:
        made.data(8, options.write(options.FIELD, field.options))
    is_optional = field.label == "optional" and file.syntax != "proto2"
    if field.oneof or is_optional:
        made.number(9, numbers[field.oneof or f"_{field.name}"])
    made.text(10, field.json_name or json_name(field.name))
    if is_optional:
        made.number(17, 1)
    return made.done()


def _type(made: Writer, name: str, types: Types) -> None:
    if name in SCALARS:
        made.number(5, SCALARS[name])
    else:
        made.number(5, _ENUM if types.is_enum(name) else _MESSAGE)
        made.text(6, f".{name}")


def _entry_name(field: Field) -> str:
    camel = json_name(field.name)
    return f"{camel[:1].upper()}{camel[1:]}Entry"


def _entry(field: Field, types: Types) -> bytes:
    """Return the message of the entries of a map."""
    made = Writer()
    made.text(1, _entry_name(field))
    for number, name, type_ in ((1, "key", field.key), (2, "value", field.type)):
        inner = Writer()
        inner.text(1, name)
        inner.number(3, number)
        inner.number(4, 1)
        _type(inner, type_, types)
        inner.text(10, name)
        made.data(2, inner.done())
    own = Writer()
    own.number(7, 1)
    made.data(7, own.done())
    return made.done()


def _enum(enum: Enum) -> bytes:
    made = Writer()
    made.text(1, enum.name)
    for name, number, own in enum.values:
        inner = Writer()
        inner.text(1, name)
        inner.number(2, number)
        if own:
            inner.data(3, options.write(options.VALUE, own))
        made.data(2, inner.done())
    if enum.options:
        made.data(3, options.write(options.ENUM, enum.options))
    _reserved(made, enum.reserved, (4, 5), _ENUM_NUMBERS_END, excluded=0)
    return made.done()


def _service(service: Service) -> bytes:
    made = Writer()
    made.text(1, service.name)
    for each in service.methods:
        inner = Writer()
        inner.text(1, each.name)
        inner.text(2, f".{each.given.lstrip('.')}")
        inner.text(3, f".{each.answer.lstrip('.')}")
        if each.options:
            inner.data(4, options.write(options.METHOD, each.options))
        for number, streams in ((5, each.streams_in), (6, each.streams_out)):
            if streams:
                inner.number(number, 1)
        made.data(2, inner.done())
    if service.options:
        made.data(3, options.write(options.SERVICE, service.options))
    return made.done()


def _reserved(
    made: Writer, texts: list[str], numbers: tuple[int, int], end: int, *, excluded: int
) -> None:
    for text in texts:
        for begin, last in _ranges(text, end):
            made.data(numbers[0], _bounds(begin, last + excluded))
        for part in text.split(","):
            if part.strip().startswith('"'):
                made.text(numbers[1], part.strip()[1:-1])


def _ranges(text: str, end: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match and (match[1].lstrip("-").isdigit()):
            last = match[2] or match[1]
            if last == "max" or last.lstrip("-").isdigit():
                found.append((int(match[1]), end if last == "max" else int(last)))
    return found


def _bounds(begin: int, end: int) -> bytes:
    made = Writer()
    made.number(1, begin)
    made.number(2, end)
    return made.done()
