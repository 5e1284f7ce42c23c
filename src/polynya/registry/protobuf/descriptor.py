"""Descriptors (`google.protobuf.FileDescriptorProto`): Python's and C#'s serializers register them
in base64 instead of a text, and ask for them by `format=serialized`."""

from __future__ import annotations

import base64
import binascii

import msgspec

from polynya.base.limits import SCHEMA_DEPTH_MAX
from polynya.registry.protobuf import options
from polynya.registry.protobuf.model import (
    SCALARS,
    Enum,
    Field,
    File,
    Message,
    Method,
    Option,
    Service,
)
from polynya.registry.protobuf.wire import Value, fields_of
from polynya.registry.refused import BadSchema

_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_TYPES = {number: name for name, number in SCALARS.items()}
_LABELS = {1: "optional", 2: "required", 3: "repeated"}
_NUMBER_MAX = 2**29 - 1  # of fields; a range to the end ends behind it


def decoded(text: str) -> bytes | None:
    """Return the bytes of a text in base64; None: it is another text."""
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def read_file(data: bytes) -> File:
    """Return the model of a descriptor. Raises BadSchema."""
    file, reading = File(), _Reading()
    imports: list[str] = []
    kinds: dict[int, str] = {}
    for number, value in fields_of(data):
        if number == 2:
            file.package = _text(value)
        elif number == 3:
            imports.append(_text(value))
        elif number in (10, 11):
            kinds[_number(value)] = "public" if number == 10 else "weak"
        elif number == 4:
            file.messages.append(reading.message(_bytes(value), 1))
        elif number == 5:
            file.enums.append(reading.enum(_bytes(value)))
        elif number == 6:
            file.services.append(reading.service(_bytes(value)))
        elif number == 8:
            file.options = [*reading.options(options.FILE, value)]
        elif number == 12:
            file.syntax = _text(value)
        elif number not in (1, 9):  # extensions and editions
            reading.is_whole = False
    if not (file.messages or file.enums or file.services or imports or file.package):
        raise BadSchema("the descriptor is empty; expected one of a .proto file")
    file.imports = [(each, kinds.get(at, "")) for at, each in enumerate(imports)]
    file.coded = not reading.is_whole
    return file


class _Reading:
    """A pass over a descriptor. `is_whole` turns false at what the model has not."""

    def __init__(self) -> None:
        self.is_whole = True

    def options(
        self, known: dict[str, tuple[int, str | tuple[str, ...]]], value: Value
    ) -> tuple[Option, ...]:
        """Return options."""
        found = options.read(known, _bytes(value))
        self.is_whole &= found is not None
        return found or ()

    def message(self, data: bytes, depth: int) -> Message:
        """Return a message."""
        if depth > SCHEMA_DEPTH_MAX:
            raise BadSchema(f"messages are nested deeper than {SCHEMA_DEPTH_MAX} levels")
        made = Message("")
        maps: dict[str, Message] = {}
        fields: list[tuple[Field, int]] = []
        for number, value in fields_of(data):
            if number == 1:
                made.name = _text(value)
            elif number == 2:
                fields.append(self.field(_bytes(value)))
            elif number == 3:
                inner = self.message(_bytes(value), depth + 1)
                if any(each.name == "map_entry" for each in inner.options):
                    maps[inner.name] = inner
                else:
                    made.messages.append(inner)
            elif number == 4:
                made.enums.append(self.enum(_bytes(value)))
            elif number == 7:
                is_map = (7, 1) in fields_of(_bytes(value))
                entry = [Option("map_entry", "true")]
                made.options = entry if is_map else [*self.options(options.MESSAGE, value)]
            elif number == 8:
                name = _text(next((each for at, each in fields_of(_bytes(value)) if at == 1), b""))
                made.oneofs.append(name)
            elif number == 9:
                made.reserved.append(_range(_bytes(value), excluded=1))
            elif number == 10:
                made.reserved.append(f'"{_text(value)}"')
            elif number == 5:
                made.extensions.append(_range(_bytes(value), excluded=1))
            else:
                self.is_whole = False
        made.fields = [_placed(field, oneof, made, maps) for field, oneof in fields]
        used = {each.oneof for each in made.fields}
        made.oneofs = [each for each in made.oneofs if each in used]
        return made

    def field(self, data: bytes) -> tuple[Field, int]:
        """Return a field, and the number of its oneof; -1: none."""
        made, kind, oneof, is_optional = Field("", 0, ""), 0, -1, False
        for number, value in fields_of(data):
            if number == 1:
                made.name = _text(value)
            elif number == 3:
                made.number = _number(value)
            elif number == 4:
                made.label = _LABELS.get(_number(value), "")
            elif number == 5:
                kind = _number(value)
            elif number == 6:
                made.type = _text(value)
            elif number == 7:
                made.default = _text(value)
            elif number == 8:
                made.options = self.options(options.FIELD, value)
            elif number == 9:
                oneof = _number(value)
            elif number == 10:
                made.json_name = _text(value)
            elif number == 17:
                is_optional = bool(value)
            else:
                self.is_whole = False
        if kind == _GROUP:
            raise BadSchema(f"the field '{made.name}' is a group, which is not supported")
        made.type = made.type or _TYPES.get(kind, "")
        if not made.type or not made.name or not made.number:
            raise BadSchema("a field of the descriptor has no type, name or number")
        if made.json_name == json_name(made.name):
            made.json_name = None
        if is_optional:
            oneof = -1
            made.where = "proto3_optional"
        if made.default is not None and made.type == "string":
            made.default = options.quoted(made.default.encode())
        elif made.default is not None and made.type == "bytes":
            made.default = f'"{made.default}"'
        return made, oneof

    def enum(self, data: bytes) -> Enum:
        """Return an enum."""
        made = Enum("")
        for number, value in fields_of(data):
            if number == 1:
                made.name = _text(value)
            elif number == 2:
                made.values.append(self._value(_bytes(value)))
            elif number == 3:
                made.options = [*self.options(options.ENUM, value)]
            elif number == 4:
                made.reserved.append(_range(_bytes(value), excluded=0))
            elif number == 5:
                made.reserved.append(f'"{_text(value)}"')
            else:
                self.is_whole = False
        return made

    def _value(self, data: bytes) -> tuple[str, int, tuple[Option, ...]]:
        name, assigned, found = "", 0, ()
        own: tuple[Option, ...] = found
        for number, value in fields_of(data):
            if number == 1:
                name = _text(value)
            elif number == 2:
                assigned = _signed(_number(value))
            elif number == 3:
                own = self.options(options.VALUE, value)
        return name, assigned, own

    def service(self, data: bytes) -> Service:
        """Return a service."""
        made = Service("")
        for number, value in fields_of(data):
            if number == 1:
                made = msgspec.structs.replace(made, name=_text(value))
            elif number == 2:
                methods = (*made.methods, self._method(_bytes(value)))
                made = msgspec.structs.replace(made, methods=methods)
            elif number == 3:
                made = msgspec.structs.replace(made, options=self.options(options.SERVICE, value))
        return made

    def _method(self, data: bytes) -> Method:
        found = dict(fields_of(data))
        own = self.options(options.METHOD, found[4]) if 4 in found else ()
        return Method(
            _text(found.get(1, b"")),
            _text(found.get(2, b"")),
            _text(found.get(3, b"")),
            bool(found.get(5, 0)),
            bool(found.get(6, 0)),
            own,
        )


def _placed(field: Field, oneof: int, made: Message, maps: dict[str, Message]) -> Field:
    """Return a field in its oneof, or as a map if its type is the entry of one."""
    if 0 <= oneof < len(made.oneofs):
        field.oneof = made.oneofs[oneof]
        field.label = ""
    entry = maps.get(field.type.rpartition(".")[2])
    if entry is not None and field.label == "repeated" and len(entry.fields) == 2:
        field.key, field.type = entry.fields[0].type, entry.fields[1].type
        field.label = ""
    return field


def json_name(name: str) -> str:
    """Return the name of a field in JSON that the compiler gives it."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _range(data: bytes, *, excluded: int) -> str:
    found = dict(fields_of(data))
    begin, end = _signed(_number(found.get(1, 0))), _signed(_number(found.get(2, 0))) - excluded
    if begin == end:
        return str(begin)
    return f"{begin} to {'max' if end in (_NUMBER_MAX, 2**31 - 1) else end}"


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise BadSchema("the bytes are no descriptor of a .proto file")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise BadSchema("the bytes are no descriptor of a .proto file")
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise BadSchema("the bytes are no descriptor of a .proto file") from None
