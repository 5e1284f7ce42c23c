"""Responses of HTTP/1.1 in parts, wherever their bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.wire.http.response_parts import Field, ResponseParts

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\nhel\r\nl\r\n1\r\no\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
ENDLESS = b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nhello"


def parts(data: bytes, cuts: list[int], method: bytes = b"GET"):
    heads: list[list[Field]] = []
    body: list[bytes] = []
    found = ResponseParts(method, heads.append, lambda piece: body.append(bytes(piece)))
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        found.feed(memoryview(data)[begin:end])
    return heads, b"".join(body), found


@pytest.mark.parametrize(
    ("data", "statuses", "body"),
    [
        (SIZED, [b"200"], b"hello"),
        (CHUNKED, [b"200"], b"hel\r\nlo"),
        (EMPTY, [b"204"], b""),
        (INTERIM, [b"100", b"200"], b"hello"),
        (ENDLESS, [b"200"], b"hello"),
    ],
    ids=["sized", "chunked", "empty", "interim", "until-the-close"],
)
@settings(max_examples=examples(40), deadline=None)
@given(points=st.lists(st.integers(0, 200), max_size=6))
def test_heads_and_body_are_the_same_wherever_they_are_cut(
    data: bytes, statuses: list[bytes], body: bytes, points: list[int]
) -> None:
    heads, found, state = parts(data, sorted(point for point in points if point <= len(data)))
    assert [dict(head)[b":status"] for head in heads] == statuses
    assert found == body
    assert state.began and state.is_complete
    names = {name for head in heads for name, _ in head}
    assert names.isdisjoint({b"connection", b"transfer-encoding"})
    assert all(name == name.lower() for name in names)


def test_a_response_is_complete_with_its_last_byte() -> None:
    for data in (SIZED, CHUNKED):
        assert not parts(data[:-1], [])[2].is_complete
    assert not parts(SIZED[:20], [])[2].began


def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    heads, body, state = parts(SIZED[:-5], [], b"HEAD")
    assert (b"content-length", b"5") in heads[0]
    assert body == b"" and state.is_complete
