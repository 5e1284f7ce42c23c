"""Frames and commands of the text protocol, byte for byte as Walrus' server answers them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.front.text.protocol import (
    BadCommand,
    BadFrame,
    TextCommand,
    pack_frame,
    parse_command,
    take_frames,
)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("REGISTER logs", ("REGISTER", "logs", "")),
        ("REGISTER logs again and more", ("REGISTER", "logs", "")),
        ("PUT logs hello", ("PUT", "logs", "hello")),
        ("PUT logs  two  spaces", ("PUT", "logs", " two  spaces")),
        ("PUT logs keep me \t\n", ("PUT", "logs", "keep me")),
        ("PUT logs a\nb\0c", ("PUT", "logs", "a\nb\0c")),
        ("PUT logs x\x1f", ("PUT", "logs", "x\x1f")),
        ("PUT logs x\u2003\u3000", ("PUT", "logs", "x")),
        ("GET logs\n", ("GET", "logs", "")),
        ("STATE logs", ("STATE", "logs", "")),
        ("METRICS", ("METRICS", "", "")),
        ("METRICS please", ("METRICS", "", "")),
    ],
)
def test_commands(line: str, command: tuple[str, str, str]) -> None:
    assert parse_command(line.encode()) == TextCommand(*command)


@pytest.mark.parametrize(
    ("line", "response"),
    [
        (b"REGISTER", "ERR REGISTER requires a topic"),
        (b"REGISTER ", "ERR REGISTER requires a topic"),
        (b"PUT logs", "ERR PUT requires a payload"),
        (b"PUT logs  \n", "ERR PUT requires a payload"),
        (b"GET", "ERR GET requires a topic"),
        (b"put logs x", "ERR unknown command"),
        (b" PUT logs x", "ERR unknown command"),
        (b"FETCH logs", "ERR unknown command"),
        (b"", "ERR unknown command"),
        (b"PUT logs \xff", "ERR invalid utf-8"),
    ],
)
def test_wrong_commands_get_walrus_responses(line: bytes, response: str) -> None:
    with pytest.raises(BadCommand) as wrong:
        parse_command(line)
    assert str(wrong.value) == response


def test_a_frame_is_a_little_endian_length_and_utf_8() -> None:
    assert pack_frame("OK h\u00e4") == b"\x06\x00\x00\x00OK h\xc3\xa4"


def test_frames_before_a_wrong_one_are_not_lost() -> None:
    buffer = bytearray(pack_frame("GET t") + pack_frame("GET u") + bytes(4))
    assert take_frames(buffer, 64) == [b"GET t", b"GET u"]
    with pytest.raises(BadFrame):
        take_frames(buffer, 64)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.lists(st.integers(1, 30)))
def test_frames_come_out_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    buffer, found = bytearray(), []
    for cut in [*cuts, len(stream)]:
        buffer += stream[:cut]
        stream = stream[cut:]
        found += take_frames(buffer, 64)
    assert found == bodies and not buffer


@pytest.mark.parametrize("length", [0, 65_537, 0x54534F50])
def test_a_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(BadFrame, match=f"this one names {length}"):
        take_frames(bytearray(length.to_bytes(4, "little") + b"rest"), 64)
    assert take_frames(bytearray((65_536).to_bytes(4, "little") + bytes(65_536)), 64) == [
        bytes(65_536)
    ]
