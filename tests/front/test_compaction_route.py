"""`/v1/compaction/NAME`: permissions, refusals, and how far a compaction is."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.cold.compaction.compactor import LastPass
from polynya.front.http.compaction import CompactionRoute
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.local.api import Refusal, StreamInfo
from polynya.service.stream_compaction import StreamCompaction
from polynya.stream.replies import Code

LAST = LastPass(1_700_000_000_000, 0.5, 1000, 7, 700)
FOUND = StreamCompaction(
    7, 12, 1_700_000_000_000, 2, 1000, 250, "records in memory", "", True, LAST
)


class Finder:
    """Two streams, of which a/b is compacted."""

    async def find(self, name: str) -> StreamCompaction | None:
        return FOUND if name == "a/b" else None

    compact = find

    async def info(self, name: str) -> StreamInfo | Refusal:
        if name == "a/plain":
            return StreamInfo(1, name, "", 0, 0, 0, 0)
        return Refusal(Code.NOT_FOUND)


def asked(method: str, name: str, *verbs: str) -> tuple[int, Any]:
    principal = Principal(id="p", name="p", grants=(Grant(frozenset(verbs), "a/"),))
    path, parts = f"/v1/compaction/{name}", tuple(name.split("/"))
    request = Request(method, path, parts, {}, {}, b"", "", principal if verbs else None)
    response = asyncio.run(CompactionRoute(Finder()).handle(request))  # type: ignore[arg-type]
    return response.status, msgspec.json.decode(response.body)


def test_a_look_says_how_far_it_is() -> None:
    status, shown = asked("GET", "a/b", Verb.READ)
    assert status == 200
    assert shown == {
        "name": "a/b",
        "bytes": 1000,
        "dirty_bytes": 250,
        "dirty_ratio": 0.25,
        "cleaned_offset": 12,
        "tombstones_until": "2023-11-14T22:13:20Z",
        "passes": 2,
        "due": True,
        "held_by": "records in memory",
        "kept_for": None,
        "last_pass": {
            "ended_at": "2023-11-14T22:13:20Z",
            "seconds": 0.5,
            "read_bytes": 1000,
            "dropped_records": 7,
            "dropped_bytes": 700,
            "complete": True,
            "damage": None,
        },
    }


@pytest.mark.parametrize(
    ("method", "name", "verb", "code"),
    [
        ("GET", "a/b", Verb.APPEND, "FORBIDDEN"),
        ("POST", "a/b", Verb.READ, "FORBIDDEN"),
        ("PUT", "a/b", Verb.READ, "METHOD_NOT_ALLOWED"),
        ("GET", "a/..", Verb.READ, "INVALID_NAME"),
        ("GET", "a/absent", Verb.READ, "NOT_FOUND"),
        ("GET", "a/plain", Verb.READ, "INVALID_REQUEST"),
        ("POST", "a/plain", Verb.DELETE, "INVALID_REQUEST"),
    ],
)
def test_what_is_refused(method: str, name: str, verb: str, code: str) -> None:
    with pytest.raises(Failure) as refused:
        asked(method, name, verb)
    assert refused.value.code == code


def test_a_pass_is_begun_with_delete() -> None:
    assert asked("POST", "a/b", Verb.DELETE)[0] == 202
