"""Bodies in a content coding, and digests of them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.limits import CODED_BODY_BYTES_LEAST, CODED_BODY_RATIO_MAX
from polynya.wire.http.body_coding import (
    BadCoding,
    BadDigest,
    CodedTooLarge,
    UnknownCoding,
    decode_body,
)


def digest(data: bytes, name: str = "sha-256") -> str:
    return f"{name}=:{b64encode(hashlib.new(name.replace('-', ''), data).digest()).decode()}:"


CODERS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}


@given(st.binary(max_size=2000), st.sampled_from(sorted(CODERS)))
def test_what_was_sent_comes_out(data, coding):
    sent = CODERS[coding](data)
    headers = {
        "content-encoding": coding.upper(),
        "content-digest": digest(sent, "sha-512"),
        "repr-digest": f"md5=:AAAA:, {digest(data)};q=1",
    }
    assert decode_body(headers, sent) == data


def test_several_gzip_members_are_one_body():
    parts = gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two")
    assert decode_body({"content-encoding": "gzip"}, parts) == b"onetwo"


@pytest.mark.parametrize("coding", ["", "identity", " Identity "])
def test_an_identity_is_left_alone(coding):
    assert decode_body({"content-encoding": coding}, b"\x1f\x8b") == b"\x1f\x8b"


def test_an_empty_body_is_not_decoded():
    assert decode_body({"content-encoding": "br", "content-digest": digest(b"")}, b"") == b""


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "identity, zstd"])
def test_other_codings_are_named(coding):
    with pytest.raises(UnknownCoding, match=coding):
        decode_body({"content-encoding": coding}, b"x")


@pytest.mark.parametrize(
    ("coding", "body", "said"),
    [
        ("gzip", b"plain", "not valid gzip"),
        ("gzip", gzip.compress(b"x" * 99)[:-1], "ends too early"),
        ("gzip", gzip.compress(b"x" * 99)[:5], "ends too early"),
        ("gzip", gzip.compress(b"x") + b"more", "not valid gzip"),
        ("gzip", gzip.compress(b"x")[:-8] + bytes(8), "not valid gzip"),
        ("deflate", zlib.compress(b"x") + b"more", "4 bytes follow"),
        ("deflate", gzip.compress(b"x"), "not valid deflate"),
    ],
    ids=["plain", "cut", "head", "more", "checksum", "deflate-more", "other"],  # bytes have a time
)
def test_a_body_that_is_not_what_it_says(coding, body, said):
    with pytest.raises(BadCoding, match=said):
        decode_body({"content-encoding": coding}, body)


def test_a_bomb_is_given_up_at_its_bound():
    small = gzip.compress(bytes(CODED_BODY_BYTES_LEAST))
    assert len(decode_body({"content-encoding": "gzip"}, small)) == CODED_BODY_BYTES_LEAST
    for size in (CODED_BODY_BYTES_LEAST + 1, 64 << 20):
        with pytest.raises(CodedTooLarge, match=f"{CODED_BODY_RATIO_MAX} times"):
            decode_body({"content-encoding": "gzip"}, gzip.compress(bytes(size)))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (digest(b"other"), "nothing was stored"),
        ("sha-256=:AAAA:", "have 2d711642"),
        ("sha-256=:A:", "says sha-256 nothing"),
        (f"{digest(b'x')}, {digest(b'y', 'sha-512')}", "sha-512"),
        ("md5=:AAAA:", "send sha-256"),
        ("sha-256=abc", "send sha-256"),
        ("", "send sha-256"),
    ],
)
@pytest.mark.parametrize("name", ["Content-Digest", "Repr-Digest"])
def test_a_digest_that_does_not_fit(name, field, said):
    with pytest.raises(BadDigest, match=said) as refused:
        decode_body({name.lower(): field}, b"x")
    assert name in str(refused.value)
