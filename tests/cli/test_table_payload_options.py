"""The payload that the options of a table name."""

from __future__ import annotations

from pathlib import Path

import pytest

from polynya.cli.tables.changes import payload_text
from polynya.cli.terminal import exits

PROTO = 'syntax = "proto3"; message A { B b = 1; } message B { int32 n = 1; }'


@pytest.mark.parametrize(
    ("payload", "registry", "wanted"),
    [
        (None, None, None),
        ("registry", None, "registry"),
        (None, "http://r:1", "registry:http://r:1"),
        ("registry", "http://r:1", "registry:http://r:1"),
        ("none", None, ""),
    ],
)
def test_options_without_a_schema(
    payload: str | None, registry: str | None, wanted: str | None
) -> None:
    assert payload_text(payload, registry, None) == wanted


def test_options_with_a_schema(tmp_path: Path) -> None:
    avro, proto = tmp_path / "a.avsc", tmp_path / "p.proto"
    avro.write_text('"string"')
    proto.write_text(PROTO)
    assert payload_text("avro", None, (avro, "")) == 'avro:"string"'
    assert payload_text("protobuf", None, (proto, "")) == f"protobuf:A:{PROTO}"
    assert payload_text("protobuf", None, (proto, "B")) == f"protobuf:B:{PROTO}"


@pytest.mark.parametrize(
    ("payload", "registry", "text", "message", "error"),
    [
        ("avro", "http://r:1", None, "", "--registry is for --payload registry"),
        ("none", "http://r:1", None, "", "--registry is for --payload registry"),
        ("avro", None, None, "", "needs the schema of the values"),
        ("avro", None, "no schema", "", "is no JSON"),
        ("avro", None, '{"type": "recard"}', "", "cannot be read"),
        ("avro", None, '"string"', "M", "only Protobuf schemas have messages"),
        ("avro", None, '"' + "x" * 70_000 + '"', "", "at most 65536"),
        ("protobuf", None, PROTO, "C", "has no message 'C'"),
        ("protobuf", None, "message A { Gone g = 1; }", "", "Gone"),
    ],
)
def test_options_that_are_wrong(
    tmp_path: Path, payload: str, registry: str | None, text: str | None, message: str, error: str
) -> None:
    schema = None
    if text is not None:
        schema = tmp_path / "schema", message
        schema[0].write_text(text)
    with pytest.raises(exits.Misused, match=error):
        payload_text(payload, registry, schema)
