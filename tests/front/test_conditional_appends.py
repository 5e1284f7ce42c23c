"""Appends that name the tail which the stream must have, in each spelling and of each form."""

from __future__ import annotations

import asyncio
import json

import pytest
from front_world import Answer, World, play, request
from test_conditions import APPENDS

from polynya.base import levels
from polynya.base.errors import UpgradePending
from polynya.base.offsets import format_token
from polynya.transport.errors import decode_error, encode_error

NAME = "docs/a"


def fields(spelling: str, record: int, byte: int = 0) -> dict[str, str]:
    """The header of a condition; its byte is implied."""
    token = format_token(record, byte)
    values = {
        "if_match": f'"{token}"',
        "stream_expected_offset": token,
        "stream_record_match": str(record),
    }
    return {spelling: values[spelling]}


STATUSES = {
    "if_match": (412, "PRECONDITION"),
    "stream_expected_offset": (409, "OFFSET_CONFLICT"),
    "stream_record_match": (412, "PRECONDITION"),
}


async def tail(world: World) -> str:
    return (await world.head(NAME)).headers["stream-next-offset"]


def message(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("spelling", STATUSES)
def test_an_append_of_any_form_is_judged_by_its_condition(kind: str, spelling: str) -> None:
    body, content_type, options = APPENDS[kind]

    async def story(world: World) -> None:
        await world.put(NAME)
        assert (await world.post(NAME, b"0")).status == 204
        before = await tail(world)
        for record in (0, 2):
            refused = await world.post(
                NAME, body, content_type, **options, **fields(spelling, record)
            )
            assert (refused.status, refused.error) == STATUSES[spelling]
            assert refused.headers["stream-next-offset"] == before
            assert refused.headers.get("etag") == (f'"{before}"' if refused.status == 412 else None)
            assert before in message(refused)
        assert (await world.get(NAME)).body == b"[0]"
        assert "stream-closed" not in (await world.head(NAME)).headers
        done = await world.post(NAME, body, content_type, **options, **fields(spelling, 1))
        assert done.status in (200, 204)
        if spelling == "if_match":
            assert done.headers["etag"] == f'"{done.headers["stream-next-offset"]}"'
        assert ("stream-closed" in done.headers) == ("stream_closed" in options)

    play(story)


@pytest.mark.parametrize("spelling", STATUSES)
def test_of_twenty_at_once_one_wins(spelling: str) -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        wires = [await world.wire() for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.send(
                request(
                    "POST",
                    f"/v1/stream/{NAME}",
                    b"%d" % number,
                    content_type="application/json",
                    **fields(spelling, 0),
                )
            )
        answers = await asyncio.gather(*(wire.answer(method="POST") for wire in wires))
        statuses = sorted(answer.status for answer in answers)
        assert statuses == sorted([204, *[STATUSES[spelling][0]] * 19])
        assert len(json.loads((await world.get(NAME)).body)) == 1

    play(story)


def test_a_producers_repeat_succeeds_although_the_tail_has_moved() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        keyed = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        first = await world.post(NAME, b"1", **keyed, **fields("if_match", 0))
        assert first.status == 200
        await world.post(NAME, b"2")
        again = await world.post(NAME, b"1", **keyed, **fields("if_match", 0))
        assert (again.status, again.headers["stream-record-start"]) == (204, "0")
        assert again.headers["etag"] == f'"{await tail(world)}"'
        assert (await world.get(NAME)).body == b"[1,2]"

    play(story)


def test_the_etag_of_a_response_is_a_condition_while_it_fits() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        for source in ("HEAD", "GET"):
            tag = (await world.ask(source, f"/v1/stream/{NAME}")).headers["etag"]
            done = await world.post(NAME, b"1", if_match=tag)
            assert done.status == 204
            refused = await world.post(NAME, b"1", if_match=tag)
            assert (refused.status, refused.error) == (412, "PRECONDITION")
            # what an append answered goes on
            assert (await world.post(NAME, b"1", if_match=done.headers["etag"])).status == 204
        tag = (await world.head(NAME)).headers["etag"]
        earlier = tag.replace(".1-", ".0-", 1)
        assert earlier != tag, "the history of the cluster before a restore"
        assert (await world.post(NAME, b"1", if_match=earlier)).status == 412
        lines = await world.get(NAME, accept="application/x-ndjson")
        assert (await world.post(NAME, b"1", if_match=lines.headers["etag"])).status == 204
        tag = (await world.head(NAME)).headers["etag"]
        await world.ask("DELETE", f"/v1/stream/{NAME}")
        await world.put(NAME)
        await world.post(NAME, b"[1,1,1,1,1]")
        refused = await world.post(NAME, b"1", if_match=tag)
        assert (refused.status, refused.error) == (412, "INCARNATION_MISMATCH")
        assert refused.headers["etag"] == f'"{await tail(world)}"'
        assert "If-Match" in message(refused)

    play(story)


@pytest.mark.parametrize(
    ("headers", "part"),
    [
        ({"if_match": "*"}, "If-Match must be one offset"),
        ({"if_match": format_token(1, 2)}, "in quotes"),
        ({"if_match": f'W/"{format_token(1, 2)}"'}, "in quotes"),
        ({"if_match": f'"{format_token(1, 2)}", "{format_token(2, 4)}"'}, "one offset"),
        ({"if_match": '""'}, "If-Match"),
        ({"if_match": '"'}, "If-Match"),
        ({"if_match": ""}, "If-Match"),
        ({"if_match": '"abc"'}, "'\"abc\"'"),
        ({"stream_expected_offset": "-1"}, "Stream-Expected-Offset must be an offset"),
        ({"stream_expected_offset": "now"}, "'now'"),
        ({"stream_expected_offset": f'"{format_token(1, 2)}"'}, "Stream-Next-Offset"),
        ({"stream_expected_offset": "1"}, "'1'"),
        ({"stream_record_match": "-1"}, "Stream-Record-Match must be the number"),
        ({"stream_record_match": "1" * 19}, "Stream-Record-Match"),
        ({"stream_record_match": "٣".encode().decode("latin-1")}, "digits"),
        ({**fields("if_match", 1), **fields("stream_record_match", 2)}, "disagree"),
        ({**fields("if_match", 1), **fields("stream_expected_offset", 2)}, "disagree"),
        (
            {**fields("stream_expected_offset", 1), **fields("stream_record_match", 2)},
            "Stream-Expected-Offset and Stream-Record-Match disagree",
        ),
        (
            {
                "if_match": f'"7.1-{format_token(0, 0)}-{format_token(1, 2)}:t"',
                "stream_incarnation": "8",
            },
            "Stream-Incarnation is 8",
        ),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(headers: dict[str, str], part: str) -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        await world.post(NAME, b"1")
        refused = await world.post(NAME, b"2", **headers)
        assert (refused.status, refused.error) == (400, "INVALID_HEADER")
        assert part in message(refused)
        assert (await world.get(NAME)).body == b"[1]"

    play(story)


def test_conditions_that_agree_are_one() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        both = fields("if_match", 0) | fields("stream_expected_offset", 0, 7)
        assert (await world.post(NAME, b"1", **both)).status == 204
        assert (await world.post(NAME, b"1", **both)).status == 412

    play(story)


def test_the_order_of_the_checks() -> None:
    async def story(world: World) -> None:
        stale = fields("if_match", 7)
        assert (await world.post(NAME, b"1", **stale)).status == 404
        await world.put(NAME)
        await world.post(NAME, b"1", stream_seq="b")
        other = await world.post(NAME, b"1", stream_incarnation="9", **stale)
        assert other.error == "INCARNATION_MISMATCH"
        kind = await world.post(NAME, b"1", "text/plain", **stale)
        assert kind.error == "CONTENT_TYPE_MISMATCH"
        gap = await world.post(
            NAME, b"1", producer_id="p", producer_epoch="0", producer_seq="3", **stale
        )
        assert gap.error == "PRODUCER_GAP"
        assert (await world.post(NAME, b"1", stream_seq="a", **stale)).error == "PRECONDITION"
        behind = await world.post(NAME, b"1", stream_seq="a", **fields("if_match", 1))
        assert behind.error == "SEQ_REGRESSION"
        await world.post(NAME, b"", stream_closed="true")
        assert (await world.post(NAME, b"1", **stale)).error == "STREAM_CLOSED"

    play(story)


def test_one_connection_may_mix_appends_with_and_without_a_condition() -> None:
    """The head of an append with one is never taken for a template."""

    async def story(world: World) -> None:
        await world.put(NAME)
        wire = await world.wire()
        statuses = []
        for number in range(6):
            condition = fields("if_match", 3) if number > 2 else {}
            path = f"/v1/stream/{NAME}"
            wire.send(request("POST", path, b"1", content_type="application/json", **condition))
            statuses.append((await wire.answer(method="POST")).status)
        assert statuses == [204, 204, 204, 204, 412, 412]

    play(story)


@pytest.mark.parametrize("spelling", STATUSES)
def test_an_append_on_a_condition_waits_for_the_end_of_an_upgrade(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        monkeypatch.setattr(levels, "LEVEL", 3)
        refused = await world.post(NAME, b"1", **fields(spelling, 0))
        assert (refused.status, refused.error) == (503, "UPGRADE_PENDING")
        assert refused.headers["retry-after"] == "5"
        assert (await world.get(NAME)).body == b"[]"
        assert (await world.post(NAME, b"1")).status == 204

    play(story)


def test_the_leader_decides_whether_its_group_has_the_level() -> None:
    async def story(world: World) -> None:
        await world.put(NAME)
        sent = encode_error(UpgradePending("of another node"))
        world.service.turns.fault = decode_error(*sent)
        refused = await world.post(NAME, b"1", **fields("if_match", 0))
        assert (refused.status, refused.error) == (503, "UPGRADE_PENDING")
        assert refused.headers["stream-outcome"] == "refused"

    play(story)


def test_a_browser_may_send_conditions() -> None:
    async def story(world: World) -> None:
        answer = await world.ask("OPTIONS", f"/v1/stream/{NAME}", origin="http://a.example")
        allowed = answer.headers["access-control-allow-headers"]
        assert all(spelling.replace("_", "-") in allowed for spelling in STATUSES)
        assert "etag" in answer.headers["access-control-expose-headers"]

    play(story)
