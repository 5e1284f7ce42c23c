"""Files of Protobuf as descriptors: a text is parsed here, and Google's library links it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

from polynya.base.errors import ConfigError
from polynya.lakehouse.payloads.nodes import BadSchema
from polynya.lakehouse.schema.protobuf import strict_parser

_REASON_MAX = 300  # characters: each record of the schema has it in its dead letter
_IMPORTS = {"dependency", "public_dependency", "weak_dependency", "option_dependency"}
_OWN = "polynya.proto"  # of a schema: no reference has this name
_GOOGLE = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp")
_GOOGLE_FILES = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (*_GOOGLE, "type", "wrappers", "descriptor")
}
_Kind = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Kind, f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    )
}
_LABELS = {
    ast.FieldCardinality.REQUIRED: _Kind.LABEL_REQUIRED,
    ast.FieldCardinality.OPTIONAL: _Kind.LABEL_OPTIONAL,
    ast.FieldCardinality.REPEATED: _Kind.LABEL_REPEATED,
    None: _Kind.LABEL_OPTIONAL,
}


def linked(text: str, references: Sequence[tuple[str, str]]) -> Any:
    """Return the descriptor of a schema's file, with those of the files that it refers to. Raises
    BadSchema."""
    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()
    try:
        for name, each in references:
            _add(pool, name, each, known)
        _add(pool, _OWN, text, known)
        return pool.FindFileByName(_OWN)
    except (BadSchema, ConfigError) as bad:
        raise BadSchema(str(bad)[:_REASON_MAX]) from None
    except Exception as fault:  # the library raises TypeError, KeyError and its own
        raise BadSchema(f"the Protobuf schema cannot be linked: {fault}"[:_REASON_MAX]) from None


def _add(pool: Any, name: str, text: str, known: set[str]) -> None:
    """Link a file. An import that is missing is left out: often only options are from there."""
    if name in known:
        return
    proto = _described(text) or _written(text)
    proto.name = name
    imports = list(proto.dependency)
    public = {imports[number] for number in proto.public_dependency}
    for field in _IMPORTS & set(proto.DESCRIPTOR.fields_by_name):
        proto.ClearField(field)
    for each in dict.fromkeys(imports):
        if each in _GOOGLE_FILES:
            _add_google(pool, each, known)
        if each in known:
            proto.dependency.append(each)
            if each in public:
                proto.public_dependency.append(len(proto.dependency) - 1)
    pool.Add(proto)
    known.add(name)


def _described(text: str) -> Any | None:
    """Return the file of a descriptor in base64, as Python's serializer registers it, without what no
    value has. None: it is a text."""
    try:
        data = b64decode(text.strip(), validate=True)
    except ValueError:
        return None
    proto = descriptor_pb2.FileDescriptorProto.FromString(data)
    for field in ("service", "extension", "source_code_info"):
        proto.ClearField(field)
    pending = [*proto.message_type]
    while pending:
        message = pending.pop()
        message.ClearField("extension")
        pending += message.nested_type
    return proto


def _written(text: str) -> Any:
    """Return the file of a text. Raises BadSchema, ConfigError."""
    try:
        file = Parser(setup_lexer=strict_parser, setup_parser=strict_parser).parse(text)
    except RecursionError:
        raise BadSchema("the Protobuf schema is nested too deeply") from None
    proto = descriptor_pb2.FileDescriptorProto(syntax=file.syntax or "proto2")
    if file.edition:
        proto.syntax, proto.edition = "editions", f"EDITION_{file.edition}"
    for element in file.file_elements:
        if isinstance(element, ast.Package):
            proto.package = element.name
        elif isinstance(element, ast.Import):
            proto.dependency.append(element.name)
            if element.public:
                proto.public_dependency.append(len(proto.dependency) - 1)
    is_three = proto.syntax == "proto3"
    _enter(file.file_elements, proto.message_type, proto.enum_type, is_three=is_three)
    return proto


def _add_google(pool: Any, name: str, known: set[str]) -> None:
    if name in known:
        return
    proto = descriptor_pb2.FileDescriptorProto()
    import_module(_GOOGLE_FILES[name]).DESCRIPTOR.CopyToProto(proto)
    for other in proto.dependency:
        _add_google(pool, other, known)
    pool.Add(proto)
    known.add(name)


def _enter(elements: Iterable[Any], messages: Any, enums: Any, *, is_three: bool) -> None:
    for element in elements:
        if isinstance(element, ast.Message | ast.Group):
            _fill(messages.add(name=element.name), element.elements, is_three=is_three)
        elif isinstance(element, ast.Enum):
            _fill_enum(enums.add(name=element.name), element)


def _fill(proto: Any, elements: Sequence[Any], *, is_three: bool) -> None:
    _enter(elements, proto.nested_type, proto.enum_type, is_three=is_three)
    alone = []
    for element in elements:
        if isinstance(element, ast.OneOf):
            number = len(proto.oneof_decl)
            proto.oneof_decl.add(name=element.name)
            _enter(element.elements, proto.nested_type, proto.enum_type, is_three=is_three)
            for inner in element.elements:
                if isinstance(inner, ast.Field | ast.Group):
                    _field(proto, inner).oneof_index = number
        elif isinstance(element, ast.MapField):
            _map(proto, element)
        elif isinstance(element, ast.Field | ast.Group):
            field = _field(proto, element)
            if is_three and element.cardinality is ast.FieldCardinality.OPTIONAL:
                field.proto3_optional = True
                alone.append(field)
    for field in alone:  # each is a oneof of its own, after the others
        field.oneof_index = len(proto.oneof_decl)
        proto.oneof_decl.add(name=f"_{field.name}")


def _field(proto: Any, element: Any) -> Any:
    name, kind = element.name, getattr(element, "type", "")
    if isinstance(element, ast.Group):
        name, kind = element.name.lower(), element.name
    field = proto.field.add(name=name, number=int(element.number))
    field.label = _LABELS[element.cardinality]
    if isinstance(element, ast.Group):
        field.type = _Kind.TYPE_GROUP
    _set_type(field, kind)
    return field


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind  # relative to where it stands: the library finds it


def _map(proto: Any, element: ast.MapField) -> None:
    words = element.name.split("_")
    entry = "".join(word[:1].upper() + word[1:] for word in words) + "Entry"
    nested = proto.nested_type.add(name=entry)
    nested.options.map_entry = True
    for number, (name, kind) in enumerate(
        (("key", element.key_type), ("value", element.value_type)), 1
    ):
        _set_type(nested.field.add(name=name, number=number, label=_Kind.LABEL_OPTIONAL), kind)
    field = proto.field.add(name=element.name, number=int(element.number))
    field.label, field.type_name = _Kind.LABEL_REPEATED, entry


def _fill_enum(proto: Any, element: ast.Enum) -> None:
    numbers = set()
    for value in element.elements:
        if isinstance(value, ast.EnumValue):
            proto.value.add(name=value.name, number=int(value.number))
            if value.number in numbers:
                proto.options.allow_alias = True
            numbers.add(value.number)
