"""POST /v1/append: appends to many streams, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, World, play
from test_authorizer import Gate, guarded

from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import APPENDS_PER_REQUEST_MAX
from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE

URL = "/v1/append"
START = "0000000000000000_0000000000000000"


async def ask(world: World, lines: Sequence[Any], **headers: str) -> Answer:
    body = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    return await world.ask("POST", URL, body, content_type="application/x-ndjson", **headers)


async def outcomes(world: World, lines: Sequence[Any], **headers: str) -> list[dict[str, Any]]:
    answer = await ask(world, lines, **headers)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = json.loads(answer.body)
    assert len(found) == len(lines)
    return found


def test_each_line_has_the_outcome_of_the_same_append_alone() -> None:
    async def story(world: World) -> None:
        await world.put("iot/a")
        await world.put("iot/b", "application/octet-stream")
        await world.put("iot/t", "text/plain")
        found = await outcomes(
            world,
            [
                {"stream": "iot/a", "records": [{"t": 1}, 2], "producer": ["gw", 0, 0]},
                {"stream": "iot/a", "records": [{"t": 1}, 2], "producer": ["gw", 0, 0]},
                {"stream": "iot/b", "base64": "AAEC"},
                {"stream": "iot/b", "base64": "AAEC", "if_match": START},
                {"stream": "iot/t", "text": "é", "stream_seq": "1"},
                {"stream": "iot/missing", "records": [1]},
                {"stream": "iot/a", "text": "x"},
                {"stream": "iot/a", "close": True},
                {"stream": "iot/a", "records": [3]},
            ],
        )
        assert [each["status"] for each in found] == [200, 204, 204, 412, 204, 404, 409, 204, 409]
        assert [each.get("code") for each in found] == [
            None,
            None,
            None,
            "PRECONDITION",
            None,
            "NOT_FOUND",
            "CONTENT_TYPE_MISMATCH",
            None,
            "STREAM_CLOSED",
        ]
        assert found[0]["next_offset"] == "0000000000000002_0000000000000011"
        assert found[0]["incarnation"] and found[7]["closed"] is True
        assert found[3]["next_offset"] == "0000000000000001_0000000000000003"
        assert START in found[3]["message"], "it says what was expected"
        assert "iot/missing" in found[5]["message"]
        assert "text/plain" in found[6]["message"], "it names both types"
        assert (await world.get("iot/a")).body == b'[{"t": 1},2]'
        assert (await world.get("iot/b")).body == b"\0\1\2"
        assert (await world.get("iot/t")).body == "é".encode()

    play(story)


def test_lines_of_one_stream_are_applied_in_order_and_others_do_not_wait() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        await world.put("b")
        lines = [
            {"stream": "a" if number % 2 else "b", "records": [number]} for number in range(20)
        ]
        found = await outcomes(world, lines)
        assert [int(each["next_offset"].split("_")[0]) for each in found] == [
            number // 2 + 1 for number in range(20)
        ]
        assert json.loads((await world.get("a")).body) == list(range(1, 20, 2))

    play(story)


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ({"stream": "a"}, "EMPTY_BODY", "records, base64 nor text"),
        ({"stream": "a", "records": []}, "EMPTY_ARRAY", ""),
        ({"stream": "a", "records": {"a": 1}}, "INVALID_REQUEST", "array"),
        ({"stream": "a", "records": [1], "text": "x"}, "INVALID_REQUEST", "both records and text"),
        ({"stream": "a", "base64": "?"}, "INVALID_REQUEST", "base64"),
        ({"stream": "a", "text": ""}, "EMPTY_BODY", "text is empty"),
        (
            {"stream": "a", "text": "x", "content_type": "x" * 999},
            "INVALID_REQUEST",
            "Content-Type",
        ),
        ({"stream": "a", "records": [1], "content_type": "text/plain"}, "INVALID_REQUEST", "array"),
        ({"stream": "a", "records": [1], "if_match": "7"}, "INVALID_REQUEST", "If-Match"),
        ({"stream": "a", "records": [1], "if_match": "a\r\nb"}, "INVALID_REQUEST", "If-Match"),
        ({"stream": "a", "records": [1], "producer": ["p", -1, 0]}, "INVALID_REQUEST", "Epoch"),
        ({"stream": "a", "records": [1], "producer": ["", 0, 0]}, "INVALID_REQUEST", "Producer-Id"),
        ({"stream": "a", "records": [1], "incarnation": 7}, "INCARNATION_MISMATCH", ""),
        ({"stream": "_a", "records": [1]}, "INVALID_NAME", "_a"),
        ({"stream": "", "records": [1]}, "INVALID_NAME", ""),
        (
            {"stream": "a", "text": "{}", "content_type": "application/vnd.polynya.records+json"},
            "NOT_SUPPORTED",
            "whole records",
        ),
        (
            {"stream": "a", "text": "x", "content_type": KAFKA_CONTENT_TYPE},
            "KAFKA_PARTITION",
            "",
        ),
    ],
)
def test_a_wrong_line_is_refused_and_the_others_are_appended(
    line: dict[str, Any], code: str, text: str
) -> None:
    async def story(world: World) -> None:
        await world.put("a")
        good = {"stream": "a", "records": [1]}
        found = await outcomes(world, [good, line, good])
        assert [each["status"] for each in (found[0], found[2])] == [204, 204]
        assert 400 <= found[1]["status"] < 500 and found[1]["code"] == code, found[1]
        assert text in found[1]["message"]
        assert (await world.get("a")).body == b"[1,1]"

    play(story)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (b"[1]", "line 2"),
        (b'{"stream":"a","record":[1]}', "record"),
        (b'{"records":[1]}', "stream"),
        (b'{"stream":"a","records":[1', "line 2"),
        (b'{"stream":"\xff"}', "line 2"),
        (b'{"stream":"a","records":' + b"[" * 100_000, "line 2"),
    ],
    ids=["array", "unknown", "nameless", "torn", "utf8", "deep"],
)
def test_a_body_that_is_not_of_appends_appends_nothing(bad: bytes, text: str) -> None:
    async def story(world: World) -> None:
        await world.put("a")
        answer = await ask(world, [{"stream": "a", "records": [1]}, bad])
        assert (answer.status, answer.error) == (400, "INVALID_REQUEST")
        assert text in json.loads(answer.body)["error"]["message"]
        assert (await world.get("a")).body == b"[]"

    play(story)


def test_there_are_bounds() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        lines = [{"stream": "a", "records": [1]}] * APPENDS_PER_REQUEST_MAX
        assert len(await outcomes(world, lines)) == APPENDS_PER_REQUEST_MAX
        more = await ask(world, [*lines, lines[0]])
        assert (more.status, more.error) == (413, "TOO_MANY_RECORDS")
        empty = await ask(world, [b"", b" "])
        assert (empty.status, empty.error) == (400, "EMPTY_BODY")
        other = await world.ask("GET", URL)
        assert (other.status, other.headers["allow"]) == (405, "POST, OPTIONS")
        condition = await ask(world, [lines[0]], if_match=f'"{START}"')
        assert (condition.status, condition.error) == (400, "NOT_SUPPORTED")
        assert json.loads((await world.get("a")).body) == [1] * APPENDS_PER_REQUEST_MAX

    play(story)


def test_a_large_and_a_coded_body() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        text = "x" * 100_000
        line = json.dumps({"stream": "a", "records": [text]}).encode()
        assert (await ask(world, [line, line])).status == 200
        coded = await ask(world, [gzip.compress(line, mtime=0)], content_encoding="gzip")
        assert coded.status == 200
        assert json.loads((await world.get("a")).body) == [text] * 3

    play(story)


@pytest.mark.parametrize(
    ("fault", "status", "code", "is_unknown"),
    [
        (Unavailable("no leader"), 503, "UNAVAILABLE", False),
        (OutcomeUnknown("lost"), 503, "OUTCOME_UNKNOWN", True),
        (ValueError("a defect"), 500, "INTERNAL", True),
    ],
    ids=["unavailable", "unknown", "defect"],
)
def test_a_group_that_fails_costs_its_lines_alone(
    fault: BaseException, status: int, code: str, is_unknown: bool
) -> None:
    async def story(world: World) -> None:
        await world.put("a")
        world.service.turns.fault = fault
        found = await outcomes(world, [{"stream": "a", "records": [1]}, {"stream": "_"}])
        assert (found[0]["code"], found[0].get("unknown", False)) == (code, is_unknown)
        assert found[0]["status"] == status
        assert found[1]["code"] == "INVALID_NAME"

    play(story)


def test_other_requests_of_the_connection_wait() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        world.service.turns.held = True
        asked = asyncio.ensure_future(ask(world, [{"stream": "a", "records": [1]}]))
        await asyncio.sleep(0)
        assert not asked.done()
        await world.until(lambda: world.service.turns._proposals)
        world.service.turns.release()
        assert (await asked).status == 200

    play(story)


def test_an_older_group_refuses_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.put("a")
        monkeypatch.setattr(
            type(world.service), "level", property(lambda _: levels.CONDITIONS_LEVEL - 1)
        )
        line = {"stream": "a", "records": [1]}
        found = await outcomes(world, [line | {"if_match": START}, line])
        assert [each.get("code") for each in found] == ["UPGRADE_PENDING", None]

    play(story)


def test_a_token_appends_where_it_may_and_pays_for_each_line(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("all", "admin")
        gate.token("writer", "append:shop/")
        gate.token("reader", "read:shop/")
        gate.token("slow", "append:shop/", requests_per_second=1)

    async def story(world: World, gate: Gate) -> None:
        await world.put("shop/a", **gate.bearer("all"))
        await world.put("other/a", **gate.bearer("all"))
        lines = [{"stream": "shop/a", "records": [1]}, {"stream": "other/a", "records": [1]}]
        found = await outcomes(world, lines, **gate.bearer("writer"))
        assert [each.get("code") for each in found] == [None, "FORBIDDEN"]
        refused = await ask(world, lines, **gate.bearer("reader"))
        assert (refused.status, refused.error) == (403, "FORBIDDEN")
        assert (await ask(world, lines)).status == 401
        wire = await world.wire()
        wire.close()
        assert (await ask(world, lines[:1] * 50, **gate.bearer("slow"))).status == 200
        late = await ask(world, lines[:1], **gate.bearer("slow"))
        assert (late.status, late.error) == (429, "RATE_LIMIT")
        assert int(late.headers["retry-after"]) > 10, "each line was a request"

    guarded(tmp_path, story, setup=setup)
