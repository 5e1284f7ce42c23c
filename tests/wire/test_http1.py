"""Requests are read the same however their bytes are cut, and doubtful ones are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.wire.http.http1 import CHUNKED, BadRequest, ChunkedBody, HeadParser, find_head


def parse(text: bytes):  # noqa: ANN201
    return HeadParser().parse(text)


def test_a_plain_head() -> None:
    head = parse(
        b"POST /v1/stream/a?x=1 HTTP/1.1\r\nHost: h\r\nContent-Type:\ttext/plain \r\n"
        b"CONTENT-LENGTH: 12\r\nVia: a\r\nvia: b"
    )
    assert (head.method, head.target, head.length, head.keep_alive, head.minor) == (
        "POST",
        "/v1/stream/a?x=1",
        12,
        True,
        1,
    )
    assert head.headers == {
        "host": "h",
        "content-type": "text/plain",
        "content-length": "12",
        "via": "a, b",
    }


def test_cached_lines_give_the_same_head() -> None:
    parser = HeadParser()
    block = b"GET / HTTP/1.1\r\nHost: h\r\nX: 1"
    assert parser.parse(block) == parser.parse(block) == parse(block)


@pytest.mark.parametrize(
    ("connection", "version", "keeps"),
    [
        (b"close", b"1", False),
        (b"Keep-Alive", b"0", True),
        (b"", b"0", False),
        (b"", b"1", True),
        (b"upgrade, close", b"1", False),
    ],
)
def test_who_keeps_the_connection(connection: bytes, version: bytes, keeps: bool) -> None:
    line = b"\r\nConnection: " + connection if connection else b""
    assert parse(b"GET / HTTP/1." + version + b"\r\nHost: h" + line).keep_alive is keeps


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", "BOTH_LENGTHS"),
        (b"Content-Length: +5", "BAD_LENGTH"),
        (b"Content-Length: -5", "BAD_LENGTH"),
        (b"Content-Length: 5,5", "BAD_LENGTH"),
        (b"Content-Length: 0x5", "BAD_LENGTH"),
        (b"Content-Length: 5 5", "BAD_LENGTH"),
        (b"Content-Length:", "BAD_LENGTH"),
        (b"Content-Length: \xb2", "BAD_LENGTH"),
        (b"Content-Length: 99999999999999999999", "BAD_LENGTH"),
        (b"Content-Length: 5\r\nContent-Length: 5", "DUPLICATE_HEADER"),
        (b"Content-Length: 5\r\ncontent-length: 6", "DUPLICATE_HEADER"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "DUPLICATE_HEADER"),
        (b"Transfer-Encoding: identity", "TRANSFER_CODING"),
        (b"Transfer-Encoding: gzip, chunked", "TRANSFER_CODING"),
        (b"Transfer-Encoding: xchunked", "TRANSFER_CODING"),
        (b"Transfer-Encoding : chunked", "BAD_HEADER"),
        (b"Content-Length : 5", "BAD_HEADER"),
        (b" folded: 1", "BAD_HEADER"),
        (b"A: 1\r\n folded", "BAD_HEADER"),
        (b"A: 1\r\n\tB: 2", "BAD_HEADER"),
        (b"A: 1\nContent-Length: 5", "BAD_HEADER"),
        (b"A: 1\rB: 2", "BAD_HEADER"),
        (b"A: \x00", "BAD_HEADER"),
        (b"no colon", "BAD_HEADER"),
        (b": empty", "BAD_HEADER"),
        (b"Producer-Id: a\r\nProducer-Id: b", "DUPLICATE_HEADER"),
        (b"Host: other", "DUPLICATE_HEADER"),
        (b"\r\n".join(b"A%d: 1" % number for number in range(128)), "HEADERS_TOO_LARGE"),
    ],
)
def test_doubtful_headers_are_refused(lines: bytes, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(b"POST / HTTP/1.1\r\nHost: h\r\n" + lines)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "line",
    [b"GET /", b"GET  / HTTP/1.1", b"GET / HTTP/1.1 ", b" GET / HTTP/1.1", b"GET / HTTP/1.10", b"G(T / HTTP/1.1", b"GET /\x7f HTTP/1.1", b"",
     b"PRI * HTTP/2.0",     b"GET / http/1.1", b"GET /a b HTTP/1.1", b"GET\t/ HTTP/1.1"],
)  # fmt: skip
def test_doubtful_request_lines_are_refused(line: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(line + b"\r\nHost: h")


@pytest.mark.parametrize(
    "host", [b"a b", b"a/b", b"u@h", b'"h"', b"<script>", b"h\xe9", b"h?x", b"h#x", b"h\\x"]
)
def test_a_host_that_is_none_does_not_come_back_in_an_answer(host: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(b"PUT / HTTP/1.1\r\nHost: " + host)
    assert refused.value.code == "BAD_HEADER"


@pytest.mark.parametrize(
    "host",
    [b"", b"h", b"127.0.0.1:4437", b"[::1]:80", b"a-b_c.example.", b"xn--bcher-kva.example:443"],
)
def test_hosts(host: bytes) -> None:
    assert parse(b"PUT / HTTP/1.1\r\nHost: " + host).headers["host"] == host.decode()


def test_hosts_and_codings_of_old_clients() -> None:
    assert parse(b"GET / HTTP/1.0").length == 0
    with pytest.raises(BadRequest):
        parse(b"GET / HTTP/1.1")
    with pytest.raises(BadRequest):
        parse(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked")
    assert parse(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked").length == CHUNKED


def test_a_head_that_cannot_end_is_refused() -> None:
    assert find_head(b"GET / HTTP/1.1\r\nHo", 0) == -1
    assert find_head(b"xGET / HTTP/1.1\r\n\r\n", 1) == 15
    for hopeless in (
        b"GET / HTTP/1.1\n\n",
        b"x" * 65_537,
        b"x" * 65_537 + b"\r\n\r\n",
        b"\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\n",
    ):
        with pytest.raises(BadRequest):
            find_head(hopeless, 0)


def encode_chunks(pieces: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    return (
        b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces if piece)
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


@given(
    st.lists(st.binary(max_size=30), max_size=5),
    st.sampled_from([b"", b";a=b", b' ;x="y"']),
    st.sampled_from([b"", b"A: 1\r\n"]),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_chunked_bodies_are_the_same_wherever_they_are_cut(
    pieces: list[bytes], extension: bytes, trailer: bytes, cuts: list[int]
) -> None:
    wire = encode_chunks(pieces, extension, trailer) + b"NEXT"
    positions = sorted({cut for cut in cuts if cut < len(wire)} | {0, len(wire)})
    body, rest = ChunkedBody(), b""
    for begin, end in pairwise(positions):
        rest += wire[begin:end] if body.done else body.feed(wire[begin:end])
    assert (body.done, bytes(body.data), body.size, rest) == (
        True,
        b"".join(pieces),
        len(b"".join(pieces)),
        b"NEXT",
    )


@pytest.mark.parametrize(
    "wire",
    [b"x\r\n", b"+5\r\nhello\r\n", b"5\nhello", b"5\r\nhelloX\r\n", b"5\r\nhello\n0\r\n\r\n", b"-1\r\n", b"0x5\r\n", b"fffffffff\r\n", b"\r\n", b" 5\r\n",
     b"5" + b";" * 2000, b"0\r\nno colon\r\n\r\n", b"5;\x00\r\n"],
)  # fmt: skip
def test_bad_chunks_are_refused(wire: bytes) -> None:
    with pytest.raises(BadRequest):
        ChunkedBody().feed(wire)
