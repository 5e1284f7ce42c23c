"""The options of `descriptor.proto` that a text and a descriptor both have. Custom ones need the
file that defines them, so a descriptor that has one is kept as it is."""

from __future__ import annotations

from collections.abc import Sequence

from polynya.registry.protobuf.model import Option
from polynya.registry.protobuf.wire import Value, Writer, fields_of

_MODES = ("", "SPEED", "CODE_SIZE", "LITE_RUNTIME")
# name -> number and kind: `b` bool, `s` string, or the names of an enum's numbers
_Known = dict[str, tuple[int, str | tuple[str, ...]]]
FILE: _Known = {
    "java_package": (1, "s"),
    "java_outer_classname": (8, "s"),
    "optimize_for": (9, _MODES),
    "java_multiple_files": (10, "b"),
    "go_package": (11, "s"),
    "cc_generic_services": (16, "b"),
    "java_generic_services": (17, "b"),
    "py_generic_services": (18, "b"),
    "java_generate_equals_and_hash": (20, "b"),
    "deprecated": (23, "b"),
    "java_string_check_utf8": (27, "b"),
    "cc_enable_arenas": (31, "b"),
    "objc_class_prefix": (36, "s"),
    "csharp_namespace": (37, "s"),
    "swift_prefix": (39, "s"),
    "php_class_prefix": (40, "s"),
    "php_namespace": (41, "s"),
    "php_metadata_namespace": (44, "s"),
    "ruby_package": (45, "s"),
}
MESSAGE: _Known = {
    "message_set_wire_format": (1, "b"),
    "no_standard_descriptor_accessor": (2, "b"),
    "deprecated": (3, "b"),
}
FIELD: _Known = {
    "ctype": (1, ("STRING", "CORD", "STRING_PIECE")),
    "packed": (2, "b"),
    "deprecated": (3, "b"),
    "lazy": (5, "b"),
    "jstype": (6, ("JS_NORMAL", "JS_STRING", "JS_NUMBER")),
    "weak": (10, "b"),
}
ENUM: _Known = {"allow_alias": (2, "b"), "deprecated": (3, "b")}
VALUE: _Known = {"deprecated": (1, "b")}
SERVICE: _Known = {"deprecated": (33, "b")}
METHOD: _Known = {
    "deprecated": (33, "b"),
    "idempotency_level": (34, ("IDEMPOTENCY_UNKNOWN", "NO_SIDE_EFFECTS", "IDEMPOTENT")),
}


def read(known: _Known, data: bytes) -> tuple[Option, ...] | None:
    """Return the options in a descriptor; None: some are unknown."""
    names = {number: (name, kind) for name, (number, kind) in known.items()}
    found: list[Option] = []
    for number, value in fields_of(data):
        if number not in names:
            return None
        name, kind = names[number]
        text = _shown(kind, value)
        if text is None:
            return None
        found.append(Option(name, text))
    return tuple(found)


def write(known: _Known, options: Sequence[Option]) -> bytes:
    """Return the options as a descriptor has them; those that are not known are left out."""
    made = Writer()
    for each in options:
        number, kind = known.get(each.name, (0, ""))
        if kind == "b":
            made.number(number, int(each.value == "true"))
        elif kind == "s":
            made.text(number, unquoted(each.value))
        elif kind and each.value in kind:
            made.number(number, kind.index(each.value))
    return made.done()


def _shown(kind: str | tuple[str, ...], value: Value) -> str | None:
    if kind == "s":
        return quoted(value) if isinstance(value, bytes) else None
    if not isinstance(value, int):
        return None
    if kind == "b":
        return "true" if value else "false"
    return kind[value] if value < len(kind) and kind[value] else None


def quoted(value: bytes) -> str | None:
    """Return a string of a text; None: it is not UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def unquoted(text: str) -> str:
    """Return the value of a string of a text."""
    inner = text[1:-1]
    for escaped, plain in (("\\n", "\n"), ('\\"', '"'), ("\\'", "'"), ("\\\\", "\\")):
        inner = inner.replace(escaped, plain)
    return inner
