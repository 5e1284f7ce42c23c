"""Can a reader with one Protobuf schema read what was written with another?

The reader must get each value that was written, so the rules are narrower than those of the wire:
a number is not cut to fewer bits, and bytes are not taken for text.
"""

from __future__ import annotations

from collections.abc import Iterator

from polynya.registry.protobuf.model import (
    SCALARS,
    Field,
    Message,
    Types,
    messages_of,
)
from polynya.registry.protobuf.schema import ProtobufSchema
from polynya.registry.refused import Incompatibility

FOUND_MAX = 20
# type of the writer -> types that a reader may have instead
_WIDER = {
    "int32": ("int64",),
    "uint32": ("uint64", "int64"),
    "sint32": ("sint64",),
    "bool": ("int32", "uint32", "int64", "uint64"),
    "string": ("bytes",),
}


def differences(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Incompatibility]:
    """Return why a reader cannot read; empty: it can."""
    comparison = _Comparison(reader, writer)
    found: list[Incompatibility] = []
    theirs = dict(messages_of(reader.file.messages, ""))
    for name, message in messages_of(writer.file.messages, ""):
        if name not in theirs:
            text = f"the message {name} is not in the reader"
            found.append(Incompatibility("MESSAGE_REMOVED", f"#/{name}", text))
        else:
            found += comparison.messages(theirs[name], message, f"#/{name}")
    return found[:FOUND_MAX]


class _Comparison:
    """One comparison. Types of other files are compared where a field has them."""

    def __init__(self, reader: ProtobufSchema, writer: ProtobufSchema) -> None:
        self._reader, self._writer = reader, writer
        self._seen = set[tuple[int, int]]()

    def messages(self, reader: Message, writer: Message, where: str) -> Iterator[Incompatibility]:
        """Yield the differences of two messages, once."""
        pair = (id(reader), id(writer))
        if pair in self._seen:
            return
        self._seen.add(pair)
        mine = {each.number: each for each in reader.fields}
        theirs = {each.number: each for each in writer.fields}
        for number, field in theirs.items():
            other = mine.get(number)
            if other is not None:
                yield from self._fields(other, field, f"{where}/{number}")
        for number, field in mine.items():
            other = theirs.get(number)
            if field.label == "required" and (other is None or other.label != "required"):
                text = f"the field {field.name} is required by the reader, and not by the writer"
                yield Incompatibility("REQUIRED_FIELD_ADDED", f"{where}/{number}", text)
        yield from _oneofs(reader, theirs, where)

    def _fields(self, reader: Field, writer: Field, where: str) -> Iterator[Incompatibility]:
        if bool(reader.key) != bool(writer.key) or (writer.is_repeated and not reader.is_repeated):
            text = f"the field {reader.name} is {_shape(reader)} for the reader, and was {_shape(writer)}"
            yield Incompatibility("FIELD_LABEL_CHANGED", where, text)
        elif reader.key and not _reads(reader.key, writer.key):
            yield _type(reader, writer, where, reader.key, writer.key)
        yield from self._types(reader, writer, where)

    def _types(self, reader: Field, writer: Field, where: str) -> Iterator[Incompatibility]:
        mine, theirs = reader.type, writer.type
        if mine in SCALARS or theirs in SCALARS:
            if not _reads(mine, theirs):
                yield _type(reader, writer, where, mine, theirs)
            return
        if self._short(mine, self._reader) != self._short(theirs, self._writer):
            yield _type(reader, writer, where, mine, theirs)
            return
        here, there = self._reader.types, self._writer.types
        if mine in here.messages and theirs in there.messages:
            yield from self.messages(here.messages[mine], there.messages[theirs], where)
        elif here.is_enum(mine) != there.is_enum(theirs):
            yield _type(reader, writer, where, mine, theirs)
        else:
            yield from _enums(here, mine, there, theirs, where)

    @staticmethod
    def _short(name: str, schema: ProtobufSchema) -> str:
        """Return a name without the package of its file: that may change."""
        package = schema.file.package
        return name.removeprefix(f"{package}.") if package else name


def _reads(reader: str, writer: str) -> bool:
    return reader == writer or reader in _WIDER.get(writer, ())


def _type(reader: Field, writer: Field, where: str, mine: str, theirs: str) -> Incompatibility:
    text = (
        f"the field {reader.name} has the type {mine} for the reader, and was written as {theirs}"
    )
    return Incompatibility("FIELD_TYPE_CHANGED", where, text)


def _shape(field: Field) -> str:
    return "a map" if field.key else "repeated" if field.is_repeated else "single"


def _enums(
    here: Types, mine: str, there: Types, theirs: str, where: str
) -> Iterator[Incompatibility]:
    """Compare enums: one that is closed (proto2) does not read other numbers."""
    if mine not in here.enums or theirs not in there.enums or mine in here.open_enums:
        return
    known = {number for _, number, _ in here.enums[mine].values}
    missing = [name for name, number, _ in there.enums[theirs].values if number not in known]
    if missing:
        text = f"the closed enum {mine} of the reader lacks {', '.join(missing[:10])}"
        yield Incompatibility("ENUM_CONST_REMOVED", where, text)


def _oneofs(reader: Message, theirs: dict[int, Field], where: str) -> Iterator[Incompatibility]:
    """Find fields that the writer may set together, and of which the reader gets one."""
    found: dict[str, list[str]] = {}
    for each in reader.fields:
        if each.oneof and each.number in theirs:
            home = theirs[each.number].oneof or f"/{each.number}"
            found.setdefault(each.oneof, []).append(home)
    for name, homes in found.items():
        if len(set(homes)) > 1:
            text = f"fields that the writer may set together are in the oneof {name} of the reader"
            yield Incompatibility("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{where}/{name}", text)
