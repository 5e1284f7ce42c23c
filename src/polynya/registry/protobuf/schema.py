"""A Protobuf schema with its references: parsed, in one form, and as a descriptor."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from polynya.registry.protobuf.descriptor import decoded, read_file
from polynya.registry.protobuf.encoder import write_file
from polynya.registry.protobuf.model import BUNDLED, File, Types, resolve
from polynya.registry.protobuf.parser import parse_text
from polynya.registry.protobuf.printer import printed
from polynya.registry.refused import BadSchema


class ProtobufSchema(msgspec.Struct, eq=False):
    """A file, the types that it knows, and its text."""

    file: File
    types: Types
    text: str


def parse(text: str, references: Mapping[str, str], *, strict: bool = True) -> ProtobufSchema:
    """Parse a text, or a descriptor in base64, after those that it refers to. `strict`: each import
    needs a reference. Raises BadSchema."""
    types = Types()
    for name, other in references.items():
        try:
            outer = _read(other)
            types.add(outer)
            resolve(outer, types)
        except BadSchema as bad:
            raise BadSchema(f"the reference {name}: {bad}") from None
    file = _read(text)
    missing = [
        path for path, _ in file.imports if path not in references and not path.startswith(BUNDLED)
    ]
    if missing and strict:
        raise BadSchema(
            f"the imported file '{missing[0]}' is not one of 'references': register it, and name it "
            "there"
        )
    types.add(file)
    resolve(file, types)
    return ProtobufSchema(file, types, text)


def canonical(schema: ProtobufSchema, *, normalize: bool = False) -> str:
    """Return the text to keep: what was given, or the text of a descriptor. `normalize`: always as
    it is printed, without comments. A descriptor with custom options stays one."""
    if schema.file.coded:
        return schema.text.strip()
    if not normalize and decoded(schema.text) is None:
        return schema.text
    return printed(schema.file, schema.types)


def serialized(schema: ProtobufSchema) -> str:
    """Return the descriptor in base64."""
    data = decoded(schema.text)
    if data is None:
        data = write_file(schema.file, schema.types, "default")
    return base64.b64encode(data).decode()


def _read(text: str) -> File:
    data = decoded(text)
    return read_file(data) if data else parse_text(text)
