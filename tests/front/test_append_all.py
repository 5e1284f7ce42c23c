"""POST /v1/append-all: appends to several streams of one group, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from front_world import Answer, World, play

from polynya.base.offsets import format_token

URL = "/v1/append-all"
START = format_token(0, 0)


async def ask(world: World, lines: Sequence[Any], **headers: str) -> Answer:
    body = b"\n".join(json.dumps(line).encode() for line in lines)
    return await world.ask("POST", URL, body, content_type="application/x-ndjson", **headers)


async def refused(world: World, lines: Sequence[Any], status: int, reason: str, item: int) -> str:
    answer = await ask(world, lines)
    assert answer.status >= 400, (lines, answer)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (status, "NONE_APPENDED"), answer
    assert (error["reason"], error["item"]) == (reason, item)
    assert answer.headers["stream-outcome"] == "refused" and error["request_id"]
    assert error["message"].startswith("nothing was appended: append")
    return str(error["message"])


async def begin(world: World) -> None:
    for name in ("{o}/order", "{o}/stock", "{o}/raw"):
        kind = "application/octet-stream" if name.endswith("raw") else "application/json"
        await world.put(name, kind)


async def contents(world: World) -> list[bytes]:
    return [(await world.get(f"{{o}}/{name}")).body for name in ("order", "stock", "raw")]


def test_all_are_appended_and_each_has_its_offset() -> None:
    async def story(world: World) -> None:
        await begin(world)
        answer = await ask(
            world,
            [
                {"stream": "{o}/order", "records": [{"id": 1}], "if_match": START},
                {"stream": "{o}/stock", "records": [-1, -2], "close": True},
                {"stream": "{o}/raw", "base64": "AAE="},
            ],
        )
        assert answer.status == 200, answer
        found = json.loads(answer.body)
        assert [each["next_offset"][:16] for each in found] == [f"{n:016}" for n in (1, 2, 1)]
        assert [each.get("closed") for each in found] == [None, True, None]
        assert await contents(world) == [b'[{"id": 1}]', b"[-1,-2]", b"\0\1"]

    play(story)


def test_one_refusal_refuses_all() -> None:
    async def story(world: World) -> None:
        await begin(world)
        assert (await world.post("{o}/stock", b"[7]")).status == 204
        first = {"stream": "{o}/order", "records": [1], "producer": ["p", 0, 0]}
        for wrong, status, reason in (
            ({"stream": "{o}/stock", "records": [1], "if_match": START}, 412, "PRECONDITION"),
            ({"stream": "{o}/stock", "if_match": START}, 412, "PRECONDITION"),
            ({"stream": "{o}/none", "records": [1]}, 404, "NOT_FOUND"),
            ({"stream": "{o}/raw", "records": [1]}, 409, "CONTENT_TYPE_MISMATCH"),
            ({"stream": "{o}/raw", "base64": "!"}, 400, "INVALID_REQUEST"),
            ({"stream": "{o}/stock", "records": [1], "producer": ["p", 0, 4]}, 409, "PRODUCER_GAP"),
            (
                {"stream": "{o}/stock", "records": [1], "incarnation": 9},
                412,
                "INCARNATION_MISMATCH",
            ),
        ):
            await refused(world, [first, wrong], status, reason, 1)
            await refused(world, [wrong, first], status, reason, 0)
        assert await contents(world) == [b"[]", b"[7]", b""]
        assert (await ask(world, [first])).status == 200, "the producer was not moved"

    play(story)


def test_a_repeat_by_one_producer_is_a_repeat_of_all() -> None:
    async def story(world: World) -> None:
        await begin(world)
        order = {"stream": "{o}/order", "records": [1], "producer": ["p", 0, 0]}
        stock = {"stream": "{o}/stock", "records": [2], "if_match": START}
        first, again = await ask(world, [order, stock]), await ask(world, [order, stock])
        assert first.status == again.status == 200 and first.body == again.body
        assert await contents(world) == [b"[1]", b"[2]", b""]
        raw = {"stream": "{o}/raw", "base64": "AAE=", "producer": ["p", 0, 0]}
        message = await refused(world, [raw, order], 409, "PRODUCER_CONFLICT", 1)
        assert "before, without the others" in message
        other = order | {"records": [9]}
        await refused(world, [other], 409, "PRODUCER_CONFLICT", 0)
        assert await contents(world) == [b"[1]", b"[2]", b""]

    play(story)


def test_conditions_alone_append_nothing() -> None:
    async def story(world: World) -> None:
        await begin(world)
        condition = {"stream": "{o}/stock", "if_match": START}
        order = {"stream": "{o}/order", "records": [1]}
        answer = await ask(world, [condition, order])
        assert json.loads(answer.body)[0]["next_offset"] == START
        assert await contents(world) == [b"[1]", b"[]", b""]

    play(story)


@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        ([{"stream": "a", "records": [1]}, {"stream": "a", "records": [2]}], 400, "INVALID_REQUEST"),
        ([{"stream": f"s{n}", "records": [1]} for n in range(65)], 413, "TOO_MANY_RECORDS"),
        ([{"stream": "{o}/a", "text": "x" * (1 << 20)}] * 1 + [{"stream": "{o}/b", "text": "y"}], 413, "BODY_TOO_LARGE"),
        ([{"stream": "a", "frecords": [1]}], 400, "INVALID_REQUEST"),
    ],
)  # fmt: skip
def test_what_no_entry_can_have_is_refused_whole(lines: Any, status: int, code: str) -> None:
    async def story(world: World) -> None:
        answer = await ask(world, lines)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)

    play(story)


def test_streams_of_two_groups_are_refused_with_the_way_to_name_them() -> None:
    async def story(world: World) -> None:
        names = [f"s{number}" for number in range(40)]
        answer = await ask(world, [{"stream": name, "records": [1]} for name in names])
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"]) == (422, "CROSS_GROUP")
        assert "{o7}/order" in error["message"]

    play(story)
