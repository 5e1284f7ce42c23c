"""Heads of HTTP/2 as heads of HTTP/1.1: the parser of the latter reads what was sent, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.wire.http.http1 import BadRequest, HeadParser
from polynya.wire.http.http2_heads import MalformedHead, virtual_head

GET = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"node.example"),
    (b":path", b"/v1/stream/a?offset=-1"),
]


def read(headers: list[tuple[bytes, bytes]], *, has_body: bool = False):
    block = virtual_head(headers, has_body=has_body).block
    assert block.endswith(b"\r\n\r\n") and block.count(b"\r\n\r\n") == 1
    return HeadParser().parse(block[:-4])


def test_a_request_becomes_the_same_request() -> None:
    head = read(
        [*GET, (b"x-a", b"1"), (b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"te", b"trailers")]
    )
    assert (head.method, head.target, head.length) == ("GET", "/v1/stream/a?offset=-1", 0)
    assert head.headers == {
        "host": "node.example",
        "x-a": "1",
        "cookie": "a=1; b=2",
        "connection": "close",
    }
    assert not head.keep_alive


def test_a_body_has_its_length_or_comes_in_chunks() -> None:
    post = [(b":method", b"POST"), *GET[1:]]
    assert read([*post, (b"content-length", b"5")], has_body=True).length == 5
    assert read(post, has_body=True).length == -1
    assert read([*post, (b"content-length", b"0")]).length == 0


def test_the_host_is_the_authority_or_the_one_of_the_field() -> None:
    assert read([*GET, (b"host", b"node.example")]).headers["host"] == "node.example"
    assert read([*GET[:2], GET[3], (b"host", b"other")]).headers["host"] == "other"


@pytest.mark.parametrize(
    "headers",
    [
        [*GET, (b"host", b"evil.example")],
        [*GET, (b"host", b"node.example"), (b"host", b"node.example")],
        [*GET[:2], GET[3]],
        [*GET, (b"transfer-encoding", b"chunked")],
        [*GET, (b"connection", b"x")],
        [*GET, (b"upgrade", b"h2c")],
        [*GET, (b"X-A", b"1")],
        [*GET, (b"x a", b"1")],
        [*GET, (b"x:a", b"1")],
        [*GET, (b"", b"1")],
        [*GET, (b"x", b"1\r\ny: 2")],
        [*GET, (b"x", b"1\n")],
        [*GET, (b"x", b"\0")],
        [*GET, (b"x", b" 1")],
        [*GET, (b"x", b"1"), (b":path", b"/")],
        [*GET, (b":path", b"/again")],
        [*GET, (b":status", b"200")],
        [*GET, (b"te", b"gzip")],
        [*GET, (b"content-length", b"1")],
        [*GET[:3], (b":path", b"/a b")],
        [*GET[:3], (b":path", b"*")],
        [*GET[:3], (b":path", b"http://evil.example/")],
        [*GET[:3], (b":path", b"/\r\nhost: evil")],
        [*GET[:3], (b":path", b"")],
        GET[:3],
        [(b":method", b"G T"), *GET[1:]],
        [(b":method", b"CONNECT"), *GET[1:]],
        [GET[0], (b":scheme", b"file"), *GET[2:]],
    ],
)
def test_what_could_be_read_otherwise_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedHead):
        virtual_head(headers, has_body=False)


SOME = st.binary(max_size=12) | st.sampled_from(
    [
        *(b"host", b"content-length", b"cookie", b"x-a", b"te", b":path", b":method", b"trailers"),
        *(b"GET", b"POST", b"/", b"*", b"/a", b"node", b"http", b"0", b"1", b"a\r\nb: c", b"chunked"),
        *(b"transfer-encoding", b"connection", b":authority", b":scheme", b"expect"),
    ]
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.sampled_from(GET), max_size=5, unique=True),
    st.lists(st.tuples(SOME, SOME), max_size=4),
    st.booleans(),
)
def test_the_parser_reads_each_accepted_field_and_no_other(
    pseudo: list[tuple[bytes, bytes]], fields: list[tuple[bytes, bytes]], has_body: bool
) -> None:
    headers = [*pseudo, *fields]
    try:
        head = read(headers, has_body=has_body)
    except (MalformedHead, BadRequest):
        return
    known = dict(headers)
    assert head.method.encode("latin-1") == known[b":method"]
    assert head.target.encode("latin-1") == known[b":path"]
    ours = {"host", "connection", "transfer-encoding"}
    names = {name.decode("latin-1") for name, _ in headers if not name.startswith(b":")}
    assert head.headers.keys() - ours == names - {"te"} - ours
    for name, value in headers:
        if not name.startswith(b":") and name not in (b"te", b"cookie"):
            assert value.decode("latin-1") in head.headers[name.decode()].split(", ")
