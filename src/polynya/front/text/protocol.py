"""Frames and commands of the text protocol. Pure code."""

from __future__ import annotations

from struct import Struct

import msgspec

FRAME_BYTES_MAX = 65_536  # of a request, as in Walrus; responses have no limit
_LENGTH = Struct("<I")
_WHITESPACE = (  # what Rust's `trim_end` removes
    "\t\n\x0b\x0c\r "
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
WITH_TOPIC = frozenset(("REGISTER", "PUT", "GET", "STATE"))
COMMANDS = WITH_TOPIC | {"METRICS", "AUTH"}


class BadFrame(ValueError):
    """The length of a frame is invalid: the bytes after it have no meaning."""


class BadCommand(ValueError):
    """The frame holds no command; the message is the response."""


class TextCommand(msgspec.Struct, frozen=True, gc=False):
    """One request. `argument` is the topic, or the token of `AUTH`; `payload` is that of `PUT`."""

    verb: str
    argument: str = ""
    payload: str = ""


def pack_frame(text: str) -> bytes:
    """Encode a request or response."""
    body = text.encode("utf-8", "replace")
    return _LENGTH.pack(len(body)) + body


def take_frames(buffer: bytearray, most: int) -> list[bytes]:
    """Remove at most `most` whole frames from the front of a buffer; none if there is none.

    Raises `BadFrame` if the buffer begins with an invalid one.
    """
    frames: list[bytes] = []
    at = 0
    try:
        while len(frames) < most and len(buffer) - at >= 4:
            length = _LENGTH.unpack_from(buffer, at)[0]
            if not 0 < length <= FRAME_BYTES_MAX:
                if frames:
                    break
                raise BadFrame(f"a frame has 1 to {FRAME_BYTES_MAX} bytes; this one names {length}")
            if len(buffer) - at < 4 + length:
                break
            frames.append(bytes(buffer[at + 4 : at + 4 + length]))
            at += 4 + length
        return frames
    finally:
        del buffer[:at]


def parse_command(frame: bytes) -> TextCommand:
    """Parse a request. Raises `BadCommand`."""
    try:
        line = frame.decode()
    except UnicodeDecodeError:
        raise BadCommand("ERR invalid utf-8") from None
    verb, *rest = line.rstrip(_WHITESPACE).split(" ", 2)
    if verb not in COMMANDS:
        raise BadCommand("ERR unknown command")
    if verb == "METRICS":
        return TextCommand(verb)
    if not rest:
        what = "a topic" if verb in WITH_TOPIC else "a token"
        raise BadCommand(f"ERR {verb} requires {what}")
    if verb == "PUT" and len(rest) < 2:
        raise BadCommand("ERR PUT requires a payload")
    return TextCommand(verb, *rest) if verb == "PUT" else TextCommand(verb, rest[0])
