"""The types of schemas: how each is parsed, spelled in one form, and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from polynya.registry.avro import canonical, compatible, model
from polynya.registry.compatibility import NONE, Earlier, complaints
from polynya.registry.jsonschema import compatible as json_compatible
from polynya.registry.jsonschema import model as json_model
from polynya.registry.protobuf import compatible as protobuf_compatible
from polynya.registry.protobuf import schema as protobuf
from polynya.registry.records import AVRO, JSON, PROTOBUF
from polynya.registry.refused import BadSchema, Incompatibility, TooComplex

References = Mapping[str, str]  # name -> text, those that others refer to first


class SchemaType(msgspec.Struct, frozen=True):
    """The functions of a type. `differences` None: its schemas are not compared. `is_loose`: a text
    is kept as it came, so two texts may be one schema. `serialized`: a schema in base64."""

    parse: Callable[..., object]  # text, references, strict=
    canonical: Callable[..., str]  # schema, normalize=
    differences: Callable[..., list[Incompatibility]] | None
    is_loose: bool = False
    serialized: Callable[..., str] | None = None


TYPES: dict[str, SchemaType] = {
    AVRO: SchemaType(model.parse, canonical.canonical, compatible.differences),
    JSON: SchemaType(json_model.parse, json_model.canonical, json_compatible.differences),
    PROTOBUF: SchemaType(
        protobuf.parse,
        protobuf.canonical,
        protobuf_compatible.differences,
        is_loose=True,
        serialized=protobuf.serialized,
    ),
}


class Candidate(msgspec.Struct, frozen=True):
    """The text of a schema, with the texts that it refers to. `version` is that of an earlier one."""

    text: str
    references: References = {}
    version: int = 0

    @property
    def size(self) -> int:
        """The characters of all texts."""
        return len(self.text) + sum(map(len, self.references.values()))


def spelled(type_: str, wanted: Candidate, *, normalize: bool) -> str:
    """Return a schema's text in its one form. Raises BadSchema."""
    found = TYPES[type_]
    try:
        schema = found.parse(wanted.text, wanted.references, strict=True)
        text = found.canonical(schema, normalize=normalize)
        text.encode()
    except RecursionError:
        raise BadSchema("the schema is nested too deeply") from None
    except UnicodeEncodeError:
        raise BadSchema(
            "a string of the schema has half a surrogate pair, which is no text"
        ) from None
    return text


def equal(type_: str, wanted: Candidate, others: Sequence[Candidate]) -> Candidate | None:
    """Return the first of other schemas that is the wanted one in other words. Raises BadSchema."""
    text = spelled(type_, wanted, normalize=True)
    for each in others:
        try:
            if spelled(type_, each, normalize=True) == text:
                return each
        except BadSchema:  # of another registry with other rules
            continue
    return None


def serialized(type_: str, wanted: Candidate) -> str:
    """Return a schema in the format `serialized`. Raises BadSchema."""
    found = TYPES[type_]
    if found.serialized is None:
        raise BadSchema(f"schemas of the type {type_} have no format 'serialized'")
    return found.serialized(found.parse(wanted.text, wanted.references, strict=False))


def judge(type_: str, level: str, wanted: Candidate, earlier: Sequence[Candidate]) -> list[str]:
    """Return why a schema may not follow earlier ones of its type, the newest first; empty: it may.
    Raises BadSchema."""
    found = TYPES[type_]
    if level == NONE or not earlier:
        return []
    if found.differences is None:
        return [
            f"{{errorType:'UNCHECKED_TYPE', description:'schemas of the type {type_} are not "
            f"compared: set the compatibility of the subject to NONE'}}"
        ]
    try:
        schema = found.parse(wanted.text, wanted.references, strict=True)
        parsed = [
            Earlier(each.version, each.text, found.parse(each.text, each.references, strict=False))
            for each in earlier
        ]
        return complaints(level, schema, parsed, found.differences)
    except (RecursionError, TooComplex):
        return [
            "{errorType:'TOO_COMPLEX', description:'the schemas are too complex to compare: set the "
            "compatibility of the subject to NONE'}"
        ]
