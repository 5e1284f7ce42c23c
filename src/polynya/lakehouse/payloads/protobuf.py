"""Protobuf messages as types, and their bodies as values, by Google's library.

Fields have the names of the schema. A field without presence has its default where it is absent, as
readers of the message see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor

from polynya.lakehouse.payloads import scalars
from polynya.lakehouse.payloads.framing import message_indexes
from polynya.lakehouse.payloads.nodes import TEXT, BadSchema, Batch, Fields, Node, json_text
from polynya.lakehouse.payloads.proto_files import linked
from polynya.lakehouse.schema import types

Read = Callable[[Any], Any]
"""Returns the value of a field from what the library has of it."""

_F = FieldDescriptor
_SCALARS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32, _F.TYPE_UINT32), types.LONG),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_FIXED32), types.LONG),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), types.DECIMAL),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_DOUBLE), types.DOUBLE),
    _F.TYPE_BOOL: types.BOOLEAN,
    _F.TYPE_STRING: types.STRING,
    _F.TYPE_BYTES: types.BINARY,
}
_GOOGLE = "google.protobuf."
_WRAPPERS = {
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_TEXTS = {f"{_GOOGLE}{name}" for name in ("Duration", "FieldMask")}  # JSON has them as a string
_JSON = {f"{_GOOGLE}{name}" for name in ("Struct", "Value", "ListValue")}
_MESSAGES_KEPT = 64  # of one schema


class ProtobufDecoder:
    """The decoder of the messages of one schema. Raises BadSchema for one that cannot be read.

    With `message` all bodies are of that message; else each begins with the indexes of its own.
    """

    def __init__(
        self, text: str, references: Sequence[tuple[str, str]] = (), message: str = ""
    ) -> None:
        self._file = linked(text, references)
        self._messages: dict[tuple[int, ...], _Message] = {}
        self._only = _Message(self._named(message)) if message else None

    def fields(self, heads: Sequence[bytes]) -> list[Fields]:
        """Return the fields of the messages of bodies that begin so."""
        if self._only is not None:
            return [self._only.fields]
        found = {}
        for head in heads:
            try:
                message = self._message(head)[0]
            except ValueError:
                continue
            found[id(message)] = message.fields
        return list(found.values())

    def values(self, bodies: Sequence[bytes]) -> tuple[list[Batch], dict[int, str]]:
        batches: dict[int, Batch] = {}
        faults: dict[int, str] = {}
        for at, body in enumerate(bodies):
            try:
                message, begin = (self._only, 0) if self._only else self._message(body)
                value = message.read(body[begin:])
            except Exception as fault:  # the library raises DecodeError and Python's errors
                faults[at] = f"the body does not decode under its Protobuf schema: {fault}"[:300]
                continue
            batch = batches.setdefault(id(message), Batch(message.fields))
            batch.numbers.append(at)
            batch.values.append(value)
        return list(batches.values()), faults

    def _named(self, name: str) -> Any:
        inner: Any = self._file.message_types_by_name
        found = None
        for part in name.split("."):
            found = inner.get(part)
            if found is None:
                raise BadSchema(f"the Protobuf schema has no message '{name}'")
            inner = found.nested_types_by_name
        return found

    def _message(self, body: bytes) -> tuple[_Message, int]:
        """Return the message of a body, and where its bytes begin. Raises ValueError."""
        indexes, begin = message_indexes(body)
        key = tuple(indexes)
        if key not in self._messages:
            level = list(self._file.message_types_by_name.values())
            found = None
            for index in indexes:
                if not 0 <= index < len(level):
                    raise ValueError(f"the schema has no message with the indexes {indexes}")
                found = level[index]
                level = [each for each in found.nested_types if not each.GetOptions().map_entry]
            if len(self._messages) >= _MESSAGES_KEPT:
                self._messages.clear()
            self._messages[key] = _Message(found)
        return self._messages[key], begin


class _Message:
    """A message: its fields, and the reader of its bytes."""

    def __init__(self, descriptor: Any) -> None:
        self._made = message_factory.GetMessageClass(descriptor)
        node, self._read = _message(descriptor, ())
        self.fields = node.fields

    def read(self, body: bytes) -> Any:
        return self._read(self._made.FromString(body))


def _message(descriptor: Any, around: tuple[str, ...]) -> tuple[Node, Read]:
    """Return the type of a message inside of others, and the function that reads one."""
    name = descriptor.full_name
    if name == f"{_GOOGLE}Timestamp":
        return scalars.timestamp(types.TIME), _micros
    if name in _WRAPPERS:
        node, read = _scalar(descriptor.fields_by_name["value"])
        return node, lambda message: read(message.value)
    if name in _TEXTS:
        return scalars.plain(types.STRING), json_format.MessageToDict
    if name in _JSON or name in around or len(around) > types.DEPTH_MAX:
        return TEXT, _dict
    inside = (*around, name)
    fields, readers = [], []
    for field in descriptor.fields:
        node, read = _field(field, inside)
        fields.append((field.name, node))
        readers.append((field.name, field.has_presence, read))
    return Node(types.STRUCT, fields), lambda message: _read_all(message, readers)


def _read_all(message: Any, readers: Sequence[tuple[str, bool, Read]]) -> dict[str, Any]:
    return {
        name: read(getattr(message, name))
        for name, may_be_absent, read in readers
        if not may_be_absent or message.HasField(name)
    }


def _field(field: Any, around: tuple[str, ...]) -> tuple[Node, Read]:
    if not field.is_repeated:
        return _single(field, around)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        is_flag = key.type == _F.TYPE_BOOL
        node, read = _single(value, around)
        if len(around) > types.DEPTH_MAX:
            return TEXT, lambda entries: {str(name): read(each) for name, each in entries.items()}

        def entries(found: Any) -> dict[str, Any]:
            return {
                str(name).lower() if is_flag else str(name): read(each)
                for name, each in found.items()
            }

        return Node(types.MAP, [("", node)]), entries
    node, read = _single(field, around)
    kind = TEXT if len(around) > types.DEPTH_MAX else Node(types.LIST, [("", node)])
    return kind, lambda found: [read(each) for each in found]


def _single(field: Any, around: tuple[str, ...]) -> tuple[Node, Read]:
    if field.message_type is not None:
        return _message(field.message_type, around)
    return _scalar(field)


def _scalar(field: Any) -> tuple[Node, Read]:
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return scalars.plain(types.STRING), lambda number: names.get(number, str(number))
    return scalars.plain(_SCALARS[field.type]), _same


def _same(value: Any) -> Any:
    return value


def _micros(message: Any) -> int:
    return int(message.seconds) * 1_000_000 + int(message.nanos) // 1000


def _dict(message: Any) -> Any:
    """Return a message as JSON has it: what Google's mapping cannot spell, as text."""
    try:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    except Exception:
        return json_text(str(message))
