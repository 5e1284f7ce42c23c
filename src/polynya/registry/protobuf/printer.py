"""Print the model of a .proto file in one form."""

from __future__ import annotations

from collections.abc import Iterator

from polynya.registry.protobuf.model import (
    SCALARS,
    Enum,
    Field,
    File,
    Message,
    Option,
    Service,
    Types,
    joined,
)


def printed(file: File, types: Types) -> str:
    """Return the text. The types of fields are spelled as short as their scope allows."""
    return "\n".join(_file(file, types)) + "\n"


def _file(file: File, types: Types) -> Iterator[str]:
    word = "syntax" if file.syntax.startswith("proto") else "edition"
    yield f'{word} = "{file.syntax}";'
    if file.package:
        yield f"package {file.package};"
    if file.imports:
        yield ""
        for path, kind in file.imports:
            yield f'import {f"{kind} " if kind else ""}"{path}";'
    if file.options:
        yield ""
        yield from (_option(each) for each in file.options)
    printer = _Printer(file, types)
    for message in file.messages:
        yield ""
        yield from printer.message(message, file.package, "")
    for enum in file.enums:
        yield ""
        yield from _enum(enum, "")
    for name, fields in file.extends:
        yield ""
        yield f"extend {name} {{"
        yield from (printer.field(each, file.package, "  ") for each in fields)
        yield "}"
    for service in file.services:
        yield ""
        yield from printer.service(service)


class _Printer:
    """A pass over the messages of a file."""

    def __init__(self, file: File, types: Types) -> None:
        self._types = types
        self._package = file.package
        self._is_proto3 = file.syntax != "proto2"

    def message(self, message: Message, scope: str, indent: str) -> Iterator[str]:
        """Print a message, with those inside it."""
        own, inner = joined(scope, message.name), f"{indent}  "
        yield f"{indent}message {message.name} {{"
        yield from (inner + _option(each) for each in message.options)
        yield from (f"{inner}reserved {each};" for each in _parts(message.reserved))
        shown = set[str]()
        for field in message.fields:
            if not field.oneof:
                yield self.field(field, own, inner)
            elif field.oneof not in shown:
                shown.add(field.oneof)
                yield f"{inner}oneof {field.oneof} {{"
                for other in message.fields:
                    if other.oneof == field.oneof:
                        yield self.field(other, own, f"{inner}  ")
                yield f"{inner}}}"
        yield from (f"{inner}extensions {each};" for each in _parts(message.extensions))
        for nested in message.messages:
            yield from self.message(nested, own, inner)
        for enum in message.enums:
            yield from _enum(enum, inner)
        yield f"{indent}}}"

    def field(self, field: Field, scope: str, indent: str) -> str:
        """Print a field."""
        type_ = field.type if field.type in SCALARS else self._short(field.type, scope)
        if field.key:
            type_ = f"map<{field.key}, {type_}>"
        label = field.label
        if label == "optional" and self._is_proto3 and field.where == "":
            label = ""  # of a descriptor, which labels all fields
        options = [*field.options]
        if field.default is not None:
            options.insert(0, Option("default", field.default))
        if field.json_name is not None:
            options.append(Option("json_name", f'"{field.json_name}"'))
        inside = ", ".join(f"{each.name} = {each.value}" for each in options)
        start = f"{label} {type_}" if label else type_
        return f"{indent}{start} {field.name} = {field.number}{f' [{inside}]' if inside else ''};"

    def service(self, service: Service) -> Iterator[str]:
        """Print a service."""
        scope = self._package
        yield f"service {service.name} {{"
        yield from (f"  {_option(each)}" for each in service.options)
        for each in service.methods:
            given = f"{'stream ' if each.streams_in else ''}{self._short(each.given, scope)}"
            answer = f"{'stream ' if each.streams_out else ''}{self._short(each.answer, scope)}"
            head = f"  rpc {each.name} ({given}) returns ({answer})"
            if each.options:
                yield f"{head} {{"
                yield from (f"    {_option(option)}" for option in each.options)
                yield "  }"
            else:
                yield f"{head};"
        yield "}"

    def _short(self, full: str, scope: str) -> str:
        parts = full.split(".")
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            if self._types.full(name, scope) == full:
                return name
        return f".{full}"


def _option(option: Option) -> str:
    return f"option {option.name} = {option.value};"


def _parts(reserved: list[str]) -> list[str]:
    """Return ranges and names one by one, names last as in a descriptor."""
    parts = [part.strip() for each in reserved for part in each.split(",")]
    return sorted(parts, key=lambda each: each.startswith('"'))


def _inside(options: tuple[Option, ...]) -> str:
    shown = ", ".join(f"{each.name} = {each.value}" for each in options)
    return f" [{shown}]" if shown else ""


def _enum(enum: Enum, indent: str) -> Iterator[str]:
    yield f"{indent}enum {enum.name} {{"
    yield from (f"{indent}  {_option(each)}" for each in enum.options)
    yield from (f"{indent}  reserved {each};" for each in _parts(enum.reserved))
    for name, number, options in enum.values:
        yield f"{indent}  {name} = {number}{_inside(options)};"
    yield f"{indent}}}"
