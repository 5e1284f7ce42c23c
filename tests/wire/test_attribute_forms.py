"""Attributes in HTTP: their one form, merge patches, and the header."""

from __future__ import annotations

import json

import pytest

from polynya.base.limits import ATTRS_BYTES_MAX
from polynya.wire.headers import BadField
from polynya.wire.http.attributes import (
    AttributeCondition,
    TooLarge,
    encode_attributes,
    etag_of_attributes,
    format_header,
    parse_attributes,
    parse_header,
    parse_match,
    patched,
)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"{}", None),
        (b' { "b": 1, "a" : [ 1.50, null ] } ', b'{"a":[1.50,null],"b":1}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"n":123456789012345678901234567890}', b'{"n":123456789012345678901234567890}'),
        (b'{"n":0.1000000000000000000001}', b'{"n":0.1000000000000000000001}'),
        (b'{"\\u00e9":{"z":1,"y":{}}}', '{"é":{"y":{},"z":1}}'.encode()),
    ],
)
def test_there_is_one_form(body: bytes, stored: bytes | None) -> None:
    assert encode_attributes(parse_attributes(body)) == stored
    if stored is not None:
        assert encode_attributes(parse_attributes(stored)) == stored


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"1",
        b"[]",
        b"null",
        b'"a"',
        b"{} {}",
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":1e99999999999999999999}',
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b'{"a":' + b"[" * 8000 + b"]" * 8000 + b"}",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadField, match="attributes"):
        encode_attributes(parse_attributes(body))


def test_the_bound_is_that_of_the_body_and_of_what_is_stored() -> None:
    fits = b'{"a":"' + b"x" * (ATTRS_BYTES_MAX - 8) + b'"}'
    assert encode_attributes(parse_attributes(fits)) == fits
    with pytest.raises(TooLarge, match="16,385 bytes; a stream has at most 16,384"):
        parse_attributes(fits + b" ")
    with pytest.raises(TooLarge, match="16,390 bytes"):
        patched(fits, {"b": 1})


# the cases of RFC 7396, appendix A, whose target and patch are objects
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('{"e":null}', '{"a":1}', '{"a":1,"e":null}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ],
)
def test_a_merge_patch(target: str, patch: str, result: str) -> None:
    held = encode_attributes(parse_attributes(target))
    found = patched(held, parse_attributes(patch))
    assert found == (None if result == "{}" else result.encode())


def test_the_header_is_ascii_and_has_every_character() -> None:
    value = '{"é":"😀"}'.encode()
    text = format_header(value)
    assert text == '{"\\u00e9":"\\ud83d\\ude00"}' and json.loads(text) == json.loads(value)
    assert parse_header(text) == value
    full = '{"a":"%s"}' % ("😀" * (ATTRS_BYTES_MAX // 4 - 2))
    assert parse_header(format_header(full.encode())) == full.encode()
    with pytest.raises(BadField, match="Stream-Attrs must be ASCII"):
        parse_header('{"é":1}')
    with pytest.raises(BadField, match=r"Stream-Attrs: attributes are one JSON object"):
        parse_header("[]")


def test_a_tag_names_incarnation_history_and_revision() -> None:
    tag = etag_of_attributes(255, 3, 17)
    assert tag == '"ff.3-17"'
    assert parse_match(tag, 3) == AttributeCondition(17, 255)
    assert parse_match(tag, 4).revision == 1 << 62, "of before a restore"
    for bad in ("*", "ff.3-17", '"17"', '"ff.3-17", "ff.3-18"', f"W/{tag}", '"x.3-1"'):
        with pytest.raises(BadField, match="If-Match must be the ETag"):
            parse_match(bad, 3)
