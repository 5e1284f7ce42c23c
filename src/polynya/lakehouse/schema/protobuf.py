"""Column declarations from Protobuf files (.proto), for records in Protobuf's JSON mapping.

In that mapping, names are in lowerCamelCase or given by `json_name`, and integers of 64 bits are
strings (https://protobuf.dev/programming-guides/json/).
"""

from __future__ import annotations

import re
from typing import Any

from polynya.base.errors import ConfigError
from polynya.lakehouse.schema import types

_TYPES = {
    **dict.fromkeys(("int32", "uint32", "sint32", "fixed32", "sfixed32"), types.LONG),
    **dict.fromkeys(("int64", "uint64", "sint64", "fixed64", "sfixed64"), types.STRING),
    **dict.fromkeys(("float", "double"), types.DOUBLE),
    **dict.fromkeys(("string", "bytes"), types.STRING),
    "bool": types.BOOLEAN,
}
_WELL_KNOWN = {
    "Timestamp": types.TIME,
    **dict.fromkeys(("Duration", "FieldMask", "StringValue", "BytesValue"), types.STRING),
    **dict.fromkeys(("Int64Value", "UInt64Value"), types.STRING),
    **dict.fromkeys(("Int32Value", "UInt32Value"), types.LONG),
    **dict.fromkeys(("FloatValue", "DoubleValue"), types.DOUBLE),
    "BoolValue": types.BOOLEAN,
}
_GOOGLE = "google.protobuf."
_BEGIN = re.compile(
    rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*(?:syntax|edition|package|import|option|message)\b", re.DOTALL
)
Fields = list[tuple[str, Any]]


def is_protobuf(data: bytes) -> bool:
    """Report whether a file begins as a .proto file does."""
    return _BEGIN.match(data) is not None


class Messages:
    """The messages of a file by their full names, without the package."""

    def __init__(self, data: bytes) -> None:
        """Parse a .proto file. Raises ConfigError."""
        from proto_schema_parser import ast
        from proto_schema_parser.parser import Parser

        self._ast: Any = ast
        self.package = ""
        self._messages: dict[str, Any] = {}
        self._enums: set[str] = set()
        try:
            file = Parser(setup_lexer=strict_parser, setup_parser=strict_parser).parse(
                data.decode()
            )
        except (UnicodeDecodeError, RecursionError) as fault:
            raise ConfigError(f"the Protobuf schema cannot be read: {fault}") from None
        for element in file.file_elements:
            if isinstance(element, ast.Package):
                self.package = element.name
        self._enter("", file.file_elements)

    def root(self, name: str) -> str:
        """Return the message with this name, or the only one that no other message uses. Raises
        ConfigError."""
        if name:
            found = self._resolve(name, "")
            if found not in self._messages:
                raise ConfigError(f"the schema has no message '{name}'; it has {self._names()}")
            return found
        used = set()
        for owner in self._messages:
            for field in self._fields_of(owner):
                if isinstance(field, self._ast.Field):
                    found = self._resolve(field.type, owner)
                    if not f"{owner}.".startswith(f"{found}."):  # a message may contain itself
                        used.add(found)
        roots = [each for each in self._messages if "." not in each and each not in used]
        if len(roots) != 1:
            raise ConfigError(
                f"the schema has the messages {self._names()}; name one: --schema FILE#MESSAGE"
            )
        return roots[0]

    def read(self, kind: Any) -> tuple[str, Fields]:
        """Return the column type of (type, messages around it), or its fields."""
        name, around = kind
        owner = around[-1] if around else ""
        if name in _TYPES:
            return _TYPES[name], []
        known = self._resolve(name, owner)
        if known in around:
            return "", []  # it contains itself
        if known in self._messages:
            inside = (*around, known)
            return "", [self._pair(inside, field) for field in self._fields_of(known)]
        if known in self._enums:
            return types.STRING, []
        google = name.lstrip(".").removeprefix(_GOOGLE)
        return (_WELL_KNOWN.get(google, "") if google != name.lstrip(".") else ""), []

    def _pair(self, around: tuple[str, ...], field: Any) -> tuple[str, Any]:
        ast = self._ast
        given = [each.value for each in field.options if each.name == "json_name"]
        name = str(given[0]) if given else _camel(field.name)
        repeated = ast.FieldCardinality.REPEATED
        if isinstance(field, ast.MapField) or field.cardinality is repeated:
            return name, ("", ())  # no column type
        return name, (field.type, around)

    def _fields_of(self, message: str) -> list[Any]:
        ast, found = self._ast, []
        for element in self._messages[message].elements:
            if isinstance(element, ast.OneOf):
                found += [each for each in element.elements if isinstance(each, ast.Field)]
            elif isinstance(element, ast.Field | ast.MapField):
                found.append(element)
        return found

    def _enter(self, outer: str, elements: list[Any]) -> None:
        for element in elements:
            if isinstance(element, self._ast.Message | self._ast.Enum):
                name = f"{outer}.{element.name}".lstrip(".")
                if isinstance(element, self._ast.Message):
                    self._messages[name] = element
                    self._enter(name, element.elements)
                else:
                    self._enums.add(name)

    def _resolve(self, name: str, owner: str) -> str:
        """Return the full name of a type that a message names: the innermost scope wins."""
        if name.startswith("."):
            return name[1:].removeprefix(f"{self.package}.")
        scopes = owner.split(".") if owner else []
        for depth in range(len(scopes), -1, -1):
            full = ".".join([*scopes[:depth], name])
            if full in self._messages or full in self._enums:
                return full
        return name.removeprefix(f"{self.package}.")

    def _names(self) -> str:
        return ", ".join(self._messages) or "none"


class _Refusing:
    """A listener of the parser that ends it at the first syntax error."""

    def syntaxError(  # noqa: N802 - the parser calls it so
        self, _recognizer: Any, _symbol: Any, line: int, column: int, message: str, _error: Any
    ) -> None:
        problem = message.partition(" expecting ")[0]
        raise ConfigError(
            f"the Protobuf schema cannot be read: line {line}, column {column + 1}: {problem}"
        )

    def __getattr__(self, name: str) -> Any:
        """Return a listener that does nothing, for reports about the grammar."""
        return lambda *_: None


def strict_parser(recognizer: Any) -> None:
    """Make a lexer or parser raise ConfigError at the first syntax error."""
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_Refusing())


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)
