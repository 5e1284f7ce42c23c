"""The body of `STREAM/append-batch`: frames of a length, four bytes in network order, and as many
bytes, as Ursula 0.4 has them."""

from __future__ import annotations

import struct

from polynya.base.limits import BATCH_FRAMES_MAX

_LENGTH = struct.Struct(">I")


class BadFrames(ValueError):
    """The body has no frames; the message has the reason."""


def frames_of(body: bytes) -> list[bytes]:
    """Return the content of each frame. Raises `BadFrames`, also for an empty one: it would be no
    record."""
    frames: list[bytes] = []
    at, size = 0, len(body)
    while at < size:
        if len(frames) == BATCH_FRAMES_MAX:
            raise BadFrames(
                f"the body has more than {BATCH_FRAMES_MAX} frames; send them in several"
            )
        number = len(frames) + 1
        if size - at < _LENGTH.size:
            raise BadFrames(
                f"frame {number} has {size - at} bytes of its length; expected {_LENGTH.size}, a "
                "number in network order"
            )
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if not length:
            raise BadFrames(f"frame {number} is empty; every frame must have a body")
        if length > size - at:
            raise BadFrames(
                f"frame {number} has the length {length}, and {size - at} bytes follow it"
            )
        frames.append(body[at : at + length])
        at += length
    if not frames:
        raise BadFrames("the body has no frame")
    return frames
