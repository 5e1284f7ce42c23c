"""Decode JSON bodies of requests into typed structs."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.front.http.protocol.errors import Failure

Shape = TypeVar("Shape")


def read_json(body: bytes, shape: type[Shape]) -> Shape:
    """Decode a body. Raises `Failure`, also for invalid UTF-8 and for too deep nesting."""
    try:
        return msgspec.json.decode(body, type=shape)
    except RecursionError:
        raise Failure("INVALID_REQUEST", "the body is nested too deeply") from None
    except UNREADABLE as error:
        raise Failure("INVALID_REQUEST", f"the body is not valid for this path: {error}") from None
