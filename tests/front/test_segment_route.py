"""`/v1/segments/NAME`: permissions to read and to close a segment, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.front.http.api.segments import SegmentRoute
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.service.stream_segments import LeasedSegments, Rolled, SegmentView

SEGMENTS = LeasedSegments(7, 10, 0, [SegmentView(1, 1, 0, 0, 0, 3, 30)])


class Finder:
    """One stream, a/b, whose segment 1 is open."""

    async def find(self, name: str) -> LeasedSegments | None:
        return SEGMENTS if name == "a/b" else None

    async def roll(self, name: str, epoch: int) -> Rolled | None:
        return Rolled(epoch in (0, 1), SEGMENTS) if name == "a/b" else None


def asked(method: str, name: str, *verbs: str, query: dict[str, str] | None = None) -> Any:
    principal = Principal(id="p", name="p", grants=(Grant(frozenset(verbs), "a/"),))
    path, parts = f"/v1/segments/{name}", tuple(name.split("/"))
    request = Request(method, path, parts, query or {}, {}, b"", "", principal if verbs else None)
    response = asyncio.run(SegmentRoute(Finder()).handle(request))  # type: ignore[arg-type]
    return msgspec.json.decode(response.body)


def test_a_look_needs_read_and_closing_needs_append() -> None:
    assert asked("GET", "a/b", Verb.READ)["epoch"] == 1
    assert asked("POST", "a/b", Verb.APPEND)["rolled"] is True
    assert asked("POST", "a/b", query={"epoch": "2"})["rolled"] is False
    for method, verb in (("GET", Verb.APPEND), ("POST", Verb.READ), ("POST", Verb.DELETE)):
        with pytest.raises(Failure) as refused:
            asked(method, "a/b", verb)
        assert refused.value.code == "FORBIDDEN"


@pytest.mark.parametrize(
    ("method", "name", "epoch", "code"),
    [
        ("PUT", "a/b", "0", "METHOD_NOT_ALLOWED"),
        ("POST", "a/c", "0", "NOT_FOUND"),
        ("POST", "a/../b", "0", "INVALID_NAME"),
        ("POST", "a/b", "-1", "INVALID_REQUEST"),
        ("POST", "a/b", "9" * 17, "INVALID_REQUEST"),
        ("POST", "a/b", "\u0663", "INVALID_REQUEST"),
    ],
)
def test_refusals(method: str, name: str, epoch: str, code: str) -> None:
    with pytest.raises(Failure) as refused:
        asked(method, name, query={"epoch": epoch})
    assert refused.value.code == code
