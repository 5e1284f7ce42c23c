"""Write the codecs of the Kafka messages that the front serves, from the schemas of Apache Kafka.

python scripts/kafka_codec.py KAFKA_CLIENTS_JAR [FOLDER]

The jar is kafka-clients-4.3.1.jar of Maven Central: its folder `common/message` has the schemas.
Each message key becomes one module of FOLDER (src/polynya/wire/kafka/generated): a decoder for its
request and an encoder for its response, for every version that Kafka calls valid and stable.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MESSAGES = (
    "AddOffsetsToTxn", "AddPartitionsToTxn", "AlterClientQuotas", "AlterConfigs",
    "AlterPartitionReassignments", "AlterReplicaLogDirs", "AlterUserScramCredentials", "ApiVersions",
    "ConsumerGroupDescribe", "ConsumerGroupHeartbeat", "CreateAcls", "CreatePartitions",
    "CreateTopics", "DeleteAcls", "DeleteGroups", "DeleteRecords",
    "DeleteTopics", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster", "DescribeConfigs",
    "DescribeGroups", "DescribeLogDirs", "DescribeProducers", "DescribeQuorum", "DescribeTopicPartitions",
    "DescribeTransactions", "DescribeUserScramCredentials", "ElectLeaders", "EndTxn", "Fetch",
    "FindCoordinator", "GetTelemetrySubscriptions", "Heartbeat",
    "IncrementalAlterConfigs", "InitProducerId", "JoinGroup", "LeaveGroup", "ListConfigResources",
    "ListGroups", "ListOffsets", "ListPartitionReassignments", "ListTransactions", "Metadata",
    "OffsetCommit", "OffsetDelete", "OffsetFetch", "OffsetForLeaderEpoch", "Produce", "PushTelemetry",
    "SaslAuthenticate", "SaslHandshake", "SyncGroup", "TxnOffsetCommit", "WriteTxnMarkers",
)  # fmt: skip
RELEASE = "4.3.1"
FOLDER = Path(__file__).parent.parent / "src" / "polynya" / "wire" / "kafka" / "generated"
FIXED = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"
}  # fmt: skip
HINTS = {
    "bool": "bool",
    "int8": "p.Int8",
    "int16": "p.Int16",
    "uint16": "p.UInt16",
    "int32": "p.Int32",
    "int64": "p.Int64",
    "float64": "float",
}
PRIMITIVES = {"bytes": "octets"}  # types with another name in `polynya.wire.kafka.primitives`
NEVER = (1 << 15, -1)
WIDTH = 100


def versions_of(text: str) -> tuple[int, int]:
    """Return the first and the last version of a range such as `3+`, `0-12`, `4` or `none`."""
    if text == "none":
        return NEVER
    first, dash, last = text.partition("-")
    if first.endswith("+"):
        return int(first[:-1]), 1 << 14
    return int(first), int(last) if dash else int(first)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass
class Shape:
    """A struct of a message: its fields, and whether it is read or written."""

    name: str
    fields: list[Field]


@dataclass
class Field:
    """A field of a struct, as its schema defines it."""

    name: str
    type: str  # without `[]`
    is_array: bool
    versions: tuple[int, int]
    nullable: tuple[int, int]
    tagged: tuple[int, int]
    tag: int
    default: Any

    @property
    def is_struct(self) -> bool:
        return self.type[0].isupper()

    @property
    def is_fixed(self) -> bool:
        return not self.is_array and self.type in FIXED

    @property
    def is_nullable(self) -> bool:
        return self.nullable != NEVER


def field_of(schema: dict[str, Any]) -> Field:
    kind: str = schema["type"]
    return Field(
        snake(schema["name"]),
        kind.removeprefix("[]"),
        kind.startswith("[]"),
        versions_of(schema["versions"]),
        versions_of(schema.get("nullableVersions", "none")),
        versions_of(schema.get("taggedVersions", "none")),
        schema.get("tag", -1),
        schema.get("default"),
    )


@dataclass
class Message:
    """A request or a response: its structs, the inner ones first, and its versions."""

    name: str
    key: int
    is_request: bool
    first: int
    last: int
    flexible: int
    shapes: list[Shape] = field(default_factory=list)

    def always(self, versions: tuple[int, int]) -> bool:
        return versions[0] <= self.first and versions[1] >= self.last

    def never(self, versions: tuple[int, int]) -> bool:
        return versions[0] > self.last or versions[1] < self.first

    def condition(self, versions: tuple[int, int]) -> str:
        """Return the test for a version in the range, "" if each version of the message is."""
        low, high = versions
        if low > self.first and high < self.last:
            return f"{low} <= version <= {high}" if low != high else f"version == {low}"
        return " and ".join(
            [f"version >= {low}"] * (low > self.first) + [f"version <= {high}"] * (high < self.last)
        )


def message_of(schema: dict[str, Any]) -> Message:
    first, last = versions_of(schema["validVersions"])
    last -= bool(schema.get("latestVersionUnstable"))
    name = schema["name"]
    flexible = versions_of(schema["flexibleVersions"])[0]
    message = Message(name, schema["apiKey"], name.endswith("Request"), first, last, flexible)
    shared = {each["name"]: each for each in schema.get("commonStructs", ())}

    def add(name: str, fields: list[dict[str, Any]]) -> None:
        found = []
        for each in fields:
            made = field_of(each)
            if message.never(made.versions):
                continue
            if made.is_struct:
                add(made.type, (each.get("fields") or shared[made.type]["fields"]))
            found.append(made)
        if all(shape.name != name for shape in message.shapes):
            message.shapes.append(Shape(name, found))

    add(name, schema["fields"])
    return message


# --- the structs ----------------------------------------------------------------------------------


def hint_of(message: Message, each: Field) -> str:
    if each.type == "records":
        hint = "memoryview" if message.is_request else "list[p.Bytes]"
    else:
        hint = HINTS.get(each.type) or {"string": "str", "uuid": "p.Uuid"}.get(each.type, each.type)
    hint = f"list[{hint}]" if each.is_array else hint
    return f"{hint} | None" if each.is_nullable else hint


def default_of(each: Field) -> str:
    """Return the default of a field, as an expression."""
    if each.default == "null":
        return "None"
    if each.is_array:
        return "[]"
    if each.is_struct:
        return f"{each.type}()"
    if each.type == "bool":
        return str(each.default in (True, "true"))
    if each.type in FIXED:
        return str(int(str(each.default or 0), 0))
    return {
        "string": repr(each.default or "").replace("'", '"'),
        "uuid": "p.NO_UUID",
        "records": "None",
        "bytes": 'b""',
    }[each.type]


def factory_of(each: Field) -> str:
    if each.is_struct and not each.is_array and default_of(each) != "None":
        return f"msgspec.field(default_factory={each.type})"
    return default_of(each)


def struct_lines(message: Message, shape: Shape) -> Iterator[str]:
    yield f"class {shape.name}(msgspec.Struct, gc=False):"
    for each in shape.fields:
        yield f"    {each.name}: {hint_of(message, each)} = {factory_of(each)}"
    if not shape.fields:
        yield '    """No fields."""'
    yield ""
    yield ""


# --- helpers of both directions -------------------------------------------------------------------


class Module:
    """The text of one module, and the struct formats that it packs and unpacks."""

    def __init__(self) -> None:
        self.formats: dict[str, str] = {}
        self.lines: list[str] = []

    def format(self, fields: list[Field]) -> str:
        letters = "".join(FIXED[each.type] for each in fields)
        name = "_" + letters.replace("?", "x").replace("H", "u").upper()
        self.formats[name] = letters
        return name


def runs(message: Message, fields: list[Field]) -> Iterator[list[Field]]:
    """Yield neighbours of fixed size that the same versions have, and each other field alone."""
    run: list[Field] = []
    for each in fields:
        if run and not (
            each.is_fixed
            and run[0].is_fixed
            and presence(message, each) == presence(message, run[0])
        ):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def presence(message: Message, each: Field) -> str:
    """Return the test for a version that has the field outside the tagged ones; "": each has."""
    last = each.tagged[0] - 1 if each.tagged != NEVER else each.versions[1]
    return message.condition((each.versions[0], last))


def plain(message: Message, shape: Shape) -> list[Field]:
    """Return the fields that some version has outside the tagged ones."""
    return [
        each for each in shape.fields if each.tagged == NEVER or each.tagged[0] > each.versions[0]
    ]


def tagged(message: Message, shape: Shape) -> list[Field]:
    found = [
        each for each in shape.fields if each.tagged != NEVER and not message.never(each.tagged)
    ]
    return sorted(found, key=lambda each: each.tag)


def primitive_of(each: Field, *, write: bool) -> str:
    """Return the name of the function that reads or writes a field of variable size."""
    name = "array" if each.is_array else PRIMITIVES.get(each.type, each.type)
    is_either = write or not each.is_nullable or each.type == "records"  # records may be null
    return name if is_either else f"nullable_{name}"


def chooses(message: Message, shape: Shape, *, write: bool) -> Iterator[str]:
    """Yield the lines that choose the classic or the compact form of the primitives that are
    used. Readers refuse null but in fields of some version that allows it."""
    if not message.flexible <= message.last:
        compact = "never"
    else:
        compact = (
            "always" if message.flexible <= message.first else f"version >= {message.flexible}"
        )
    used = {
        primitive_of(each, write=write)
        for each in shape.fields
        if each.is_array or each.type in ("string", "records", "bytes")
    }
    used |= {"string" for each in shape.fields if each.is_array and each.type == "string"}
    prefix = "put_" if write else ""
    for name in sorted(used):
        local = f"{prefix}{name}"
        choice = {"never": f"p.{prefix}{name}", "always": f"p.{prefix}compact_{name}"}.get(
            compact, f"p.{prefix}compact_{name} if {compact} else p.{prefix}{name}"
        )
        yield f"    {local} = {choice}"


def since(message: Message, each: Field) -> str:
    """Return the rest of a test for a flexible version that has the tagged field."""
    condition = message.condition((max(each.tagged[0], message.flexible), each.tagged[1]))
    return f" and {condition}" if condition not in ("", f"version >= {message.flexible}") else ""


def differs_of(each: Field) -> str:
    """Return the test for a value that is not the default."""
    value = f"it.{each.name}"
    return (
        value if each.is_array or default_of(each) == "False" else f"{value} != {default_of(each)}"
    )


# --- decoders -------------------------------------------------------------------------------------


def reader_lines(message: Message, shape: Shape, module: Module) -> Iterator[str]:
    name = snake(shape.name)
    yield f"def read_{name}(data: memoryview, at: int, version: int) -> tuple[{shape.name}, int]:"
    yield from chooses(message, shape, write=False)
    yield f"    it = {shape.name}()"
    for run in runs(message, plain(message, shape)):
        condition = presence(message, run[0])
        indent = "    " if not condition else "        "
        if condition:
            yield f"    if {condition}:"
        if run[0].is_fixed:
            targets = ", ".join(f"it.{each.name}" for each in run) + ("," if len(run) == 1 else "")
            made = module.format(run)
            yield f"{indent}{targets} = {made}.unpack_from(data, at)"
            yield f"{indent}at += {made}.size"
        else:
            yield from (indent + line for line in read_one(message, run[0]))
    yield from tags_read(message, shape)
    yield "    return it, at"
    yield ""
    yield ""


def read_one(message: Message, each: Field) -> Iterator[str]:
    """Yield the lines that read a field that is no run of fixed ones."""
    target = f"it.{each.name}"
    begin = max(each.versions[0], message.first)
    strict = f"version < {each.nullable[0]}" if each.nullable[0] > begin else ""  # null is refused
    if each.is_array:
        yield f"count, at = {primitive_of(each, write=False)}(data, at)"
        if each.is_nullable:
            yield "if count < 0" + (f" and not {strict}" if strict else "") + ":"
            yield f"    {target} = None"
            yield "else:"
            if strict:
                yield "    p.counted(count)"
            yield from ("    " + line for line in read_elements(each, target))
        else:
            yield from read_elements(each, target)
    elif each.is_struct and each.is_nullable:
        yield "present, at = p.int8(data, at)"
        yield "if present >= 0:"
        yield f"    {target}, at = read_{snake(each.type)}(data, at, version)"
    elif each.is_struct:
        yield f"{target}, at = read_{snake(each.type)}(data, at, version)"
    elif each.type == "uuid":
        yield f"{target}, at = p.uuid(data, at)"
    else:
        read = f"{primitive_of(each, write=False)}(data, at)"
        if not (each.is_nullable and strict):
            yield f"{target}, at = {read}"
            return
        local = {"string": "value", "bytes": "octet_string"}.get(each.type, "view")
        yield f"{local}, at = {read}"
        yield f"{target} = p.given({local}) if {strict} else {local}"


def read_elements(each: Field, target: str) -> Iterator[str]:
    if each.type == "int32":
        yield f"{target}, at = p.integers(data, at, count)"
        return
    if each.type == "int64":
        yield f"{target}, at = p.large_integers(data, at, count)"
        return
    if each.type == "int8":
        yield f"{target}, at = p.small_integers(data, at, count)"
        return
    local = f"found_{each.name}"
    made = {"string": "str"}.get(each.type, each.type)
    yield f"{local}: list[{made}] = []"
    yield "for _ in range(count):"
    if each.is_struct:
        yield f"    {snake(each.type)}, at = read_{snake(each.type)}(data, at, version)"
        yield f"    {local}.append({snake(each.type)})"
    else:
        yield "    text, at = string(data, at)"
        yield f"    {local}.append(text)"
    yield f"{target} = {local}"


def tags_read(message: Message, shape: Shape) -> Iterator[str]:
    """Yield the lines that read the tagged fields of a flexible version."""
    if message.flexible > message.last:
        return
    indent = "    "
    if message.flexible > message.first:
        yield f"    if version >= {message.flexible}:"
        indent = "        "
    known = tagged(message, shape)
    if not known:
        yield f"{indent}at = p.skip_tags(data, at)"
        return
    yield f"{indent}tags, at = p.tags(data, at)"
    yield f"{indent}for _ in range(tags):"
    yield f"{indent}    number, at, end = p.tag(data, at)"
    for number, each in enumerate(known):
        test = f"number == {each.tag}{since(message, each)}"
        yield f"{indent}    {'el' if number else ''}if {test}:"
        if each.is_fixed:
            yield f'{indent}        (it.{each.name},) = unpack_from(">{FIXED[each.type]}", data, at)'
        else:
            yield from (f"{indent}        {line}" for line in read_one(message, each))
    yield f"{indent}    at = end"


# --- encoders -------------------------------------------------------------------------------------


def writer_lines(message: Message, shape: Shape, module: Module) -> Iterator[str]:
    yield f"def write_{snake(shape.name)}(put: p.Put, it: {shape.name}, version: int) -> None:"
    yield from chooses(message, shape, write=True)
    for run in runs(message, plain(message, shape)):
        condition = presence(message, run[0])
        indent = "    " if not condition else "        "
        if condition:
            yield f"    if {condition}:"
        if run[0].is_fixed:
            yield f"{indent}put({module.format(run)}.pack({', '.join(f'it.{each.name}' for each in run)}))"
        else:
            yield from (indent + line for line in write_one(run[0]))
    yield from tags_written(message, shape, module)
    yield ""
    yield ""


def write_one(each: Field, put: str = "put") -> Iterator[str]:
    """Yield the lines that write a field that is no run of fixed ones."""
    value = f"it.{each.name}"
    if each.is_array and each.is_nullable:
        yield f"if {value} is None:"
        yield f"    put_array({put}, -1)"
        yield "else:"
        yield from ("    " + line for line in write_elements(each, put))
    elif each.is_array:
        yield from write_elements(each, put)
    elif each.is_struct and each.is_nullable:
        yield f"if {value} is None:"
        yield f'    {put}(b"\\xff")'
        yield "else:"
        yield f'    {put}(b"\\1")'
        yield f"    write_{snake(each.type)}({put}, {value}, version)"
    elif each.is_struct:
        yield f"write_{snake(each.type)}({put}, {value}, version)"
    elif each.type == "uuid":
        yield f"{put}({value})"
    else:
        yield f"put_{PRIMITIVES.get(each.type, each.type)}({put}, {value})"


def write_elements(each: Field, put: str) -> Iterator[str]:
    value = f"it.{each.name}"
    yield f"put_array({put}, len({value}))"
    if each.type == "int32":
        yield f"p.put_integers({put}, {value})"
        return
    if each.type == "int8":
        yield f"p.put_small_integers({put}, {value})"
        return
    local = snake(each.type) if each.is_struct else "text"
    yield f"for {local} in {value}:"
    yield (
        f"    write_{local}({put}, {local}, version)"
        if each.is_struct
        else f"    put_string({put}, text)"
    )


def tags_written(message: Message, shape: Shape, module: Module) -> Iterator[str]:
    """Yield the lines that write the tagged fields that differ from their defaults."""
    if message.flexible > message.last:
        return
    indent = "    "
    if message.flexible > message.first:
        yield f"    if version >= {message.flexible}:"
        indent = "        "
    known = tagged(message, shape)
    if not known:
        yield f'{indent}put(b"\\0")'
        return
    yield f"{indent}tags: list[tuple[int, list[p.Bytes]]] = []"
    for each in known:
        yield f"{indent}if {differs_of(each)}{since(message, each)}:"
        yield f"{indent}    tags.append(({each.tag}, []))"
        yield f"{indent}    add = tags[-1][1].append"
        if each.is_fixed:
            yield f"{indent}    add({module.format([each])}.pack(it.{each.name}))"
        else:
            yield from (f"{indent}    {line}" for line in write_one(each, "add"))
    yield f"{indent}if tags:"
    yield f"{indent}    p.put_tags(put, tags)"
    yield f"{indent}else:"
    yield f'{indent}    put(b"\\0")'


# --- modules --------------------------------------------------------------------------------------


def set_apart(request: Message, response: Message) -> None:
    """Rename the structs of a response whose name another struct of the request has."""
    asked = {shape.name: shape for shape in request.shapes}
    renamed = dict[str, str]()
    for shape in response.shapes:  # the inner ones first
        for each in shape.fields:
            each.type = renamed.get(each.type, each.type)
        if shape.name in asked and shape != asked[shape.name]:
            renamed[shape.name] = f"{shape.name}Response"
            shape.name = renamed[shape.name]


def module_text(request: Message, response: Message) -> str:
    """Return the module of one message key."""
    module = Module()
    set_apart(request, response)
    lines: list[str] = []
    known: list[Shape] = []  # a struct that both messages have is written once
    for message, write in ((request, reader_lines), (response, writer_lines)):
        for shape in message.shapes:
            if shape not in known:
                lines += struct_lines(message, shape)
        known += message.shapes
        for shape in message.shapes:
            lines += write(message, shape, module)
    head = [
        f'"""{request.name.removesuffix("Request")}: key {request.key}, versions {request.first} '
        f"to {request.last}.",
        "",
        f"Generated by `scripts/kafka_codec.py` from the schemas of Apache Kafka {RELEASE}: do "
        "not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from struct import Struct",
        "",
        "import msgspec",
        "",
        "from polynya.wire.kafka import primitives as p",
        "",
        f"KEY = {request.key}",
        f"VERSIONS = range({f'{request.first}, ' * bool(request.first)}{request.last + 1})",
        f"FLEXIBLE = {request.flexible}",
        *(f'{name} = Struct(">{letters}")' for name, letters in sorted(module.formats.items())),
        "",
        "",
    ]
    if any('unpack_from(">' in line for line in lines):
        head[head.index("from struct import Struct")] = "from struct import Struct, unpack_from"
    return "\n".join(head + lines).rstrip() + "\n"


def index_text() -> str:
    """Return the module that lists the others."""
    names = [f"    {snake(name)}," for name in MESSAGES]
    return "\n".join(
        [
            '"""The modules of all message keys. Generated by `scripts/kafka_codec.py`: do not edit."""',
            "",
            "from polynya.wire.kafka.generated import (",
            *names,
            ")",
            "",
            "MODULES = (",
            *names,
            ")",
            "",
        ]
    )


def main(jar: str, folder: Path = FOLDER) -> None:
    with zipfile.ZipFile(jar) as opened:
        for name in MESSAGES:
            pair = []
            for side in ("Request", "Response"):
                text = opened.read(f"common/message/{name}{side}.json").decode()
                pair.append(
                    message_of(json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)))
                )
            (folder / f"{snake(name)}.py").write_text(module_text(*pair))
    (folder / "__init__.py").write_text(
        '"""The codecs that `scripts/kafka_codec.py` generates; `index.py` lists them."""\n'
    )
    (folder / "index.py").write_text(index_text())


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:3]))
