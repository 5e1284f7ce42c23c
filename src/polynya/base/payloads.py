"""The payload of a table: how values that are not JSON become typed columns.

A table declares it as the type of the path "", which is the record itself: `registry`,
`registry:URL`, `avro:SCHEMA`, or `protobuf:MESSAGE:SCHEMA`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

RECORD = ""  # the path of the record itself
REGISTRY, AVRO, PROTOBUF = "registry", "avro", "protobuf"
_URL = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/[^\s?#@]*)?", re.ASCII)
CHARACTERS_MAX = 64 << 10  # it is state of the meta group
_EXPECTED = (
    "expected 'registry', 'registry:URL', 'avro:SCHEMA' or 'protobuf:MESSAGE:SCHEMA' of at most "
    f"{CHARACTERS_MAX >> 10} KiB"
)


class BadPayload(ValueError):
    """The payload of a table is not valid; the message gives the reason."""


class Payload(NamedTuple):
    """The format of a table's values: `url` of a registry ("": the node's own), or a `schema`."""

    format: str
    url: str = ""
    message: str = ""  # of a Protobuf schema; "": its first
    schema: str = ""

    def __str__(self) -> str:
        if self.format == REGISTRY:
            return f"{REGISTRY}:{self.url}" if self.url else REGISTRY
        if self.format == AVRO:
            return f"{AVRO}:{self.schema}"
        return f"{PROTOBUF}:{self.message}:{self.schema}"


def parse_payload(text: str) -> Payload:
    """Return the parts of a payload. Raises BadPayload."""
    kind, _, rest = text.partition(":")
    if len(text) <= CHARACTERS_MAX:
        if kind == REGISTRY and (not rest or _is_url(rest)):
            return Payload(REGISTRY, rest.rstrip("/"))
        if kind == AVRO and rest.strip():
            return Payload(AVRO, schema=rest)
        message, colon, schema = rest.partition(":")
        if kind == PROTOBUF and colon and schema.strip():
            return Payload(PROTOBUF, message=message, schema=schema)
    shown = text if len(text) <= 100 else f"{text[:100]}…"
    raise BadPayload(f"'{shown}' is no payload of a table; {_EXPECTED}")


def payload_of(declared: Iterable[tuple[str, str]]) -> Payload | None:
    """Return the payload among a table's declared types. Raises BadPayload."""
    return next((parse_payload(kind) for path, kind in declared if path == RECORD), None)


def fields_of(declared: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a table's declared types of fields, without its payload."""
    return [(path, kind) for path, kind in declared if path != RECORD]


def with_payload(declared: Sequence[tuple[str, str]], text: str) -> list[tuple[str, str]]:
    """Return declared types with a payload; "" for none."""
    return [*([(RECORD, text)] if text else []), *fields_of(declared)]


def _is_url(text: str) -> bool:
    """Report whether a text is the URL of a server, without a user, a query or a fragment."""
    return _URL.fullmatch(text) is not None
