"""Parse the text of a .proto file."""

from __future__ import annotations

from polynya.base.limits import SCHEMA_DEPTH_MAX
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
from polynya.registry.protobuf.tokens import END, Tokens
from polynya.registry.refused import BadSchema

LABELS = ("optional", "required", "repeated")
_KEYS = frozenset(SCALARS) - {"double", "float", "bytes"}
NUMBER_MAX = 2**29 - 1
_RESERVED_BY_PROTOBUF = range(19000, 20000)


def parse_text(text: str) -> File:
    """Return the model of a text. Raises BadSchema, with the line and the column."""
    tokens = Tokens(text)
    if tokens.next == END:
        raise BadSchema("the text is empty; expected a .proto file")
    file = File()
    if tokens.next in ("syntax", "edition"):
        word = tokens.take()
        tokens.take("=")
        where = tokens.where
        value = _text(tokens)
        if word == "syntax" and value not in ("proto2", "proto3"):
            raise BadSchema(f'{where}: expected "proto2" or "proto3", not \'{value[:32]}\'')
        file.syntax = value
        tokens.take(";")
    while tokens.next != END:
        _statement(tokens, file)
    return file


def _statement(tokens: Tokens, file: File) -> None:
    where, word = tokens.where, tokens.take()
    if word == "package":
        file.package = tokens.of("name", "the name of a package")
        tokens.take(";")
    elif word == "import":
        kind = tokens.take() if tokens.next in ("public", "weak") else ""
        file.imports.append((_text(tokens), kind))
        tokens.take(";")
    elif word == "option":
        file.options.append(_option(tokens, ";"))
        tokens.take(";")
    elif word == "message":
        file.messages.append(_message(tokens, file, 1))
    elif word == "enum":
        file.enums.append(_enum(tokens))
    elif word == "service":
        file.services.append(_service(tokens))
    elif word == "extend":
        file.extends.append(_extend(tokens, file))
    elif word != ";":
        raise BadSchema(
            f"{where}: expected 'message', 'enum', 'import', 'option', 'package', 'service' or "
            f"'extend', not '{word[:32]}'"
        )


def _message(tokens: Tokens, file: File, depth: int) -> Message:
    where = tokens.where
    made = Message(tokens.of("name", "the name of a message"))
    if depth > SCHEMA_DEPTH_MAX:
        raise BadSchema(f"{where}: messages are nested deeper than {SCHEMA_DEPTH_MAX} levels")
    tokens.take("{")
    while not tokens.takes("}"):
        word = tokens.next
        if word == "message":
            tokens.take()
            made.messages.append(_message(tokens, file, depth + 1))
        elif word == "enum":
            tokens.take()
            made.enums.append(_enum(tokens))
        elif word == "option":
            tokens.take()
            made.options.append(_option(tokens, ";"))
            tokens.take(";")
        elif word in ("reserved", "extensions"):
            tokens.take()
            ranges = _until(tokens, ";")
            if word == "reserved":
                made.reserved.append(ranges)
            else:
                made.extensions.append(ranges)
        elif word == "extend":
            tokens.take()
            file.extends.append(_extend(tokens, file))
        elif word == "oneof":
            tokens.take()
            _oneof(tokens, made, file)
        elif not tokens.takes(";"):
            made.fields.append(_field(tokens, file))
    _check_fields(made, where)
    return made


def _oneof(tokens: Tokens, made: Message, file: File) -> None:
    name = tokens.of("name", "the name of a oneof")
    made.oneofs.append(name)
    tokens.take("{")
    while not tokens.takes("}"):
        if tokens.takes("option"):
            _option(tokens, ";")
            tokens.take(";")
        elif not tokens.takes(";"):
            field = _field(tokens, file)
            field.oneof = name
            made.fields.append(field)


def _field(tokens: Tokens, file: File) -> Field:
    where = tokens.where
    label = tokens.take() if tokens.next in LABELS else ""
    key = ""
    if tokens.next == "map":
        tokens.take()
        if tokens.takes("<"):
            start = tokens.where
            key = tokens.of("name", "the type of the keys")
            if key not in _KEYS:
                raise BadSchema(f"{start}: a map has no keys of the type '{key}'")
            tokens.take(",")
            type_ = tokens.of("name", "the type of the values")
            tokens.take(">")
        else:
            type_ = "map"
    else:
        type_ = tokens.of("name", "a field, whose type is a name")
    if type_ == "group":
        raise BadSchema(
            f"{where}: groups are not supported; use a message as the type of the field"
        )
    name = tokens.of("name", "the name of a field")
    tokens.take("=")
    start = tokens.where
    number = _integer(tokens)
    if not 1 <= number <= NUMBER_MAX or number in _RESERVED_BY_PROTOBUF:
        raise BadSchema(
            f"{start}: {number} is no number of a field: expected 1 to {NUMBER_MAX}, and not 19000 to "
            "19999"
        )
    options = _options(tokens)
    tokens.take(";")
    default = next((each.value for each in options if each.name == "default"), None)
    json_name = next((each.value for each in options if each.name == "json_name"), None)
    others = tuple(each for each in options if each.name not in ("default", "json_name"))
    if label == "required" and not file.is_closed:
        raise BadSchema(f"{where}: 'required' exists only in proto2")
    return Field(
        name,
        number,
        type_,
        label,
        key,
        options=others,
        default=default,
        json_name=None if json_name is None else json_name[1:-1],
        where=where,
    )


def _check_fields(made: Message, where: str) -> None:
    names, numbers = set[str](), set[int]()
    for each in made.fields:
        if each.name in names:
            raise BadSchema(f"{each.where or where}: {made.name} has the field '{each.name}' twice")
        if each.number in numbers:
            raise BadSchema(
                f"{each.where or where}: {made.name} has the number {each.number} twice"
            )
        names.add(each.name)
        numbers.add(each.number)


def _enum(tokens: Tokens) -> Enum:
    where = tokens.where
    made = Enum(tokens.of("name", "the name of an enum"))
    tokens.take("{")
    while not tokens.takes("}"):
        if tokens.takes("option"):
            made.options.append(_option(tokens, ";"))
            tokens.take(";")
        elif tokens.takes("reserved"):
            made.reserved.append(_until(tokens, ";"))
        elif not tokens.takes(";"):
            name = tokens.of("name", "the name of a constant")
            tokens.take("=")
            number = _integer(tokens)
            made.values.append((name, number, _options(tokens)))
            tokens.take(";")
    if not made.values:
        raise BadSchema(f"{where}: the enum {made.name} has no constants")
    return made


def _service(tokens: Tokens) -> Service:
    name, options = tokens.of("name", "the name of a service"), ()
    methods: list[Method] = []
    tokens.take("{")
    found: tuple[Option, ...] = options
    while not tokens.takes("}"):
        if tokens.takes("option"):
            found += (_option(tokens, ";"),)
            tokens.take(";")
        elif not tokens.takes(";"):
            methods.append(_method(tokens))
    return Service(name, tuple(methods), found)


def _method(tokens: Tokens) -> Method:
    tokens.take("rpc")
    name = tokens.of("name", "the name of a method")
    streams_in, given = _side(tokens)
    tokens.take("returns")
    streams_out, answer = _side(tokens)
    options: tuple[Option, ...] = ()
    if not tokens.takes(";"):
        tokens.take("{")
        while not tokens.takes("}"):
            if tokens.takes("option"):
                options += (_option(tokens, ";"),)
            tokens.take(";")
    return Method(name, given, answer, streams_in, streams_out, options)


def _side(tokens: Tokens) -> tuple[bool, str]:
    tokens.take("(")
    found = tokens.of("name", "the type of a message")
    streams = found == "stream" and tokens.kind == "name"
    if streams:
        found = tokens.take()
    tokens.take(")")
    return streams, found


def _extend(tokens: Tokens, file: File) -> tuple[str, tuple[Field, ...]]:
    name = tokens.of("name", "the type to extend")
    fields: list[Field] = []
    tokens.take("{")
    while not tokens.takes("}"):
        if not tokens.takes(";"):
            fields.append(_field(tokens, file))
    return name, tuple(fields)


def _options(tokens: Tokens) -> tuple[Option, ...]:
    found: list[Option] = []
    if tokens.takes("["):
        while True:
            found.append(_option(tokens, ",]"))
            if not tokens.takes(","):
                break
        tokens.take("]")
    return tuple(found)


def _option(tokens: Tokens, ends: str) -> Option:
    """Return an option; its value ends before one of these signs."""
    name = ""
    while tokens.next not in ("=", END):
        name += tokens.take()
    tokens.take("=")
    parts: list[str] = []
    depth = 0
    while depth or tokens.next not in ends:
        if tokens.next == END:
            tokens.take(ends[0])
        found = tokens.take()
        depth += found in ("{", "[", "<")
        depth -= found in ("}", "]", ">")
        parts.append(_requoted(found))
    return Option(name, " ".join(parts).replace("- ", "-"))


def _until(tokens: Tokens, end: str) -> str:
    """Return the tokens before a sign, with blanks between names."""
    parts: list[str] = []
    while tokens.next != end:
        found = tokens.take()
        if found == ",":
            parts[-1:] = [f"{parts[-1]},"] if parts else []
        else:
            parts.append(_requoted(found))
    tokens.take(end)
    return " ".join(parts)


def _requoted(token: str) -> str:
    return f'"{token[1:-1]}"' if token.startswith("'") and '"' not in token else token


def _integer(tokens: Tokens) -> int:
    sign = -1 if tokens.takes("-") else 1
    where, found = tokens.where, tokens.of("number", "a number")
    try:
        octal = len(found) > 1 and found[0] == "0" and found.isdigit()
        return sign * (int(found, 8) if octal else int(found, 0))
    except ValueError:
        raise BadSchema(f"{where}: '{found[:32]}' is no whole number") from None


def _text(tokens: Tokens) -> str:
    return tokens.of("string", "a string")[1:-1]
