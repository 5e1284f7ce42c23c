"""The model of a .proto file, and the resolution of names in it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import structs

from polynya.registry.refused import BadSchema

SCALARS = {  # name -> number of the type in a descriptor
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
# files that every compiler has, and that need no reference
BUNDLED = ("google/protobuf/", "google/type/", "confluent/")
_BUNDLED_PACKAGES = ("google.protobuf.", "google.type.", "confluent.")
_BUNDLED_ENUMS = frozenset(
    (
        "google.protobuf.NullValue",
        "google.protobuf.Syntax",
        "google.type.CalendarPeriod",
        "google.type.DayOfWeek",
        "google.type.Month",
    )
)


class Option(msgspec.Struct, frozen=True):
    """An option: its name and its value, as they are written."""

    name: str
    value: str


class Field(msgspec.Struct, eq=False, gc=False):
    """A field. `type` is a scalar, or the full name of a message or enum once it is resolved."""

    name: str
    number: int
    type: str
    label: str = ""  # optional, required, repeated
    key: str = ""  # the type of the keys of a map
    oneof: str = ""
    options: tuple[Option, ...] = ()
    default: str | None = None
    json_name: str | None = None
    where: str = ""  # in the text

    @property
    def is_repeated(self) -> bool:
        """Report whether there may be several values: also in a map."""
        return self.label == "repeated" or bool(self.key)


class Enum(msgspec.Struct, eq=False, gc=False):
    """An enum and its constants."""

    name: str
    values: list[tuple[str, int, tuple[Option, ...]]] = []
    options: tuple[Option, ...] = ()
    reserved: list[str] = []  # as they are written


class Message(msgspec.Struct, eq=False, gc=False):
    """A message, with those inside it."""

    name: str
    fields: list[Field] = []
    messages: list[Message] = []
    enums: list[Enum] = []
    oneofs: list[str] = []
    options: tuple[Option, ...] = ()
    reserved: list[str] = []  # as they are written
    extensions: list[str] = []  # ranges, as they are written


class Method(msgspec.Struct, frozen=True):
    """A method of a service."""

    name: str
    given: str
    answer: str
    streams_in: bool = False
    streams_out: bool = False
    options: tuple[Option, ...] = ()


class Service(msgspec.Struct, frozen=True):
    """A service."""

    name: str
    methods: tuple[Method, ...] = ()
    options: tuple[Option, ...] = ()


class File(msgspec.Struct, eq=False):
    """A file. `coded`: it came as a descriptor that has more than this model."""

    syntax: str = "proto2"
    package: str = ""
    imports: list[tuple[str, str]] = []  # path, and "public" or "weak"
    messages: list[Message] = []
    enums: list[Enum] = []
    services: list[Service] = []
    options: tuple[Option, ...] = ()
    extends: list[tuple[str, tuple[Field, ...]]] = []
    coded: bool = False

    @property
    def is_closed(self) -> bool:
        """Report whether enums have no other values than their constants."""
        return self.syntax == "proto2"


class Types(msgspec.Struct, eq=False):
    """The messages and enums of files, by full name."""

    messages: dict[str, Message] = {}
    enums: dict[str, Enum] = {}
    open_enums: set[str] = set()

    def add(self, file: File) -> None:
        """Add those of a file. Raises BadSchema for a name that is there twice."""
        for name, message in messages_of(file.messages, file.package):
            self._check(name)
            self.messages[name] = message
            for enum in message.enums:
                self._add_enum(f"{name}.{enum.name}", enum, file)
        for enum in file.enums:
            self._add_enum(joined(file.package, enum.name), enum, file)

    def _add_enum(self, name: str, enum: Enum, file: File) -> None:
        self._check(name)
        self.enums[name] = enum
        if not file.is_closed:
            self.open_enums.add(name)

    def _check(self, name: str) -> None:
        if name in self.messages or name in self.enums:
            raise BadSchema(f"the type '{name}' is defined twice")

    def has(self, name: str) -> bool:
        """Report whether a full name is known."""
        return name in self.messages or name in self.enums or name.startswith(_BUNDLED_PACKAGES)

    def is_enum(self, name: str) -> bool:
        """Report whether a full name is that of an enum."""
        return name in self.enums or name in _BUNDLED_ENUMS

    def full(self, name: str, scope: str) -> str | None:
        """Return the full name of a name in a scope, from the innermost out; None: it is unknown."""
        if name.startswith("."):
            return name[1:] if self.has(name[1:]) else None
        while True:
            found = joined(scope, name)
            if self.has(found):
                return found
            if not scope:
                return None
            scope = scope.rpartition(".")[0]


def messages_of(messages: list[Message], scope: str) -> Iterator[tuple[str, Message]]:
    """Iterate over messages and those inside them, with their full names."""
    for each in messages:
        name = joined(scope, each.name)
        yield name, each
        yield from messages_of(each.messages, name)


def joined(scope: str, name: str) -> str:
    """Return a name in a scope."""
    return f"{scope}.{name}" if scope else name


def resolve(file: File, types: Types) -> None:
    """Replace the types of all fields by full names. Raises BadSchema."""
    for name, message in messages_of(file.messages, file.package):
        for field in message.fields:
            _resolve(field, types, name)
    file.services = [_service(each, types, file.package) for each in file.services]
    for _, fields in file.extends:
        for field in fields:
            _resolve(field, types, file.package)


def _service(service: Service, types: Types, scope: str) -> Service:
    methods = [
        structs.replace(
            each,
            given=types.full(each.given, scope) or each.given,
            answer=types.full(each.answer, scope) or each.answer,
        )
        for each in service.methods
    ]
    return structs.replace(service, methods=tuple(methods))


def _resolve(field: Field, types: Types, scope: str) -> None:
    if field.type in SCALARS:
        return
    found = types.full(field.type, scope)
    if found is None:
        raise BadSchema(
            f"{field.where or scope}: the type '{field.type}' of the field '{field.name}' is unknown; "
            "define it, or import its file and name that in 'references'"
        )
    field.type = found
