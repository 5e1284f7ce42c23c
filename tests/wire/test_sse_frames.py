"""Server-sent events, read back by a parser written from the specification."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from polynya.wire.http import sse
from polynya.wire.http.sse import SseEncoding, chunk, control_event, data_event, sse_encoding


def read_events(stream: bytes) -> list[dict[str, str]]:
    """Parse by the WHATWG algorithm, as far as it matters here."""
    events: list[dict[str, str]] = []
    event: dict[str, str] = {}
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if event:
                events.append(event)
            event = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        event[name] = f"{event[name]}\n{value}" if name == "data" and "data" in event else value
    return events


@given(st.text())
def test_text_arrives_whatever_its_line_ends(text: str) -> None:
    (event,) = read_events(data_event("1_1", text.encode("utf-8", "replace"), SseEncoding.TEXT))
    shown = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n")
    assert event == {"id": "1_1", "event": "data", "data": shown}


def test_no_payload_can_forge_an_event() -> None:
    for end in ("\n", "\r", "\r\n"):
        attack = f"x{end}{end}event: control{end}data:{{}}{end}{end}"
        events = read_events(data_event("1_1", attack.encode(), SseEncoding.TEXT))
        assert [event["event"] for event in events] == ["data"]


def test_half_a_character_is_shown_as_one_unknown_per_event() -> None:
    snowman = "☃".encode()
    shown = [
        read_events(data_event("1_1", piece, SseEncoding.TEXT))[0]["data"]
        for piece in (b"a" + snowman[:2], snowman[2:] + b"b")
    ]
    assert shown == ["a\ufffd", "\ufffdb"]


@given(st.binary(min_size=1, max_size=200))
def test_binary_is_base64_of_each_event(payload: bytes) -> None:
    (event,) = read_events(data_event("1_1", payload, SseEncoding.BASE64))
    assert len(event["data"]) % 4 == 0
    assert b64decode(event["data"]) == payload


def test_json_is_an_array_also_when_it_was_written_on_several_lines() -> None:
    (event,) = read_events(data_event("1_1", b'{"a":\r\n [1,\n2]},"x",', SseEncoding.JSON))
    assert json.loads(event["data"]) == [{"a": [1, 2]}, "x"]


def test_the_lines_are_as_the_official_patterns_want_them() -> None:
    assert (
        data_event("1_5~a.1", b"line1\nline2", SseEncoding.TEXT)
        == b"id:1_5~a.1\nevent: data\ndata:line1\ndata:line2\n\n"
    )
    assert control_event("1_5", "1_5", "77", up_to_date=True, closed=False) == (
        b"id:1_5\nevent: control\n"
        b'data:{"streamNextOffset":"1_5","streamCursor":"77","upToDate":true}\n\n'
    )
    assert control_event("1_5", "1_5", "77", up_to_date=True, closed=True) == (
        b"id:1_5\nevent: control\n"
        b'data:{"streamNextOffset":"1_5","upToDate":true,"streamClosed":true}\n\n'
    )
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"


def test_the_encoding_follows_the_media_type() -> None:
    shown = [
        sse_encoding(media)
        for media in (
            "application/json",
            "text/plain",
            "text/event-stream",
            "application/ndjson",
            "image/png",
        )
    ]
    assert shown == [
        SseEncoding.JSON,
        SseEncoding.TEXT,
        SseEncoding.TEXT,
        SseEncoding.BASE64,
        SseEncoding.BASE64,
    ]


@given(st.lists(st.sampled_from([b"a", b" ", b"\n", b"\r", b"\r\n"]), min_size=1))
def test_lines_of_parts_are_those_of_the_whole(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    whole = sse.data_event("1", text, SseEncoding.TEXT)
    lines = re.split(rb"\r\n|\r|\n", text)
    expected = b"\n".join(b"data:" + b" " * line.startswith(b" ") + line for line in lines)
    assert whole == b"id:1\nevent: data\n" + expected + b"\n\n"
    for part in (1, 2, 3):
        with patch.object(sse, "_PART", part):
            assert sse.data_event("1", text, SseEncoding.TEXT) == whole
