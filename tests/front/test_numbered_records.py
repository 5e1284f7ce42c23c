"""The numbers of JSON records as clients of Ursula read them: `{record, value}` lines and events,
and the headers of every answer that has numbers."""

from __future__ import annotations

import json
import re

import pytest
from front_world import Answer, World, play, request
from test_live import control
from test_record_numbers import JSON, KINDS, RECORDS, TEXT

ENVELOPE = "application/vnd.durable-stream-records+ndjson"
EXTENSION = "json-record-coordinates-v1"
NUMBERS = ("stream-record-first", "stream-record-start", "stream-record-next")


def shown(answer: Answer) -> tuple[int | None, ...]:
    """The numbers in the headers; they come with the extension's name."""
    assert ("stream-extensions" in answer.headers) == ("stream-record-next" in answer.headers)
    assert answer.headers.get("stream-extensions", EXTENSION) == EXTENSION
    return tuple(int(answer.headers[name]) if name in answer.headers else None for name in NUMBERS)


def lines(body: bytes) -> list[tuple[int, object]]:
    assert body.endswith(b"\n") or not body
    found = [json.loads(line) for line in body.splitlines()]
    assert all(each.keys() == {"record", "value"} for each in found)
    return [(each["record"], each["value"]) for each in found]


def events(piece: bytes) -> list[tuple[str, str, bytes]]:
    """Parse each event into (id, kind, data)."""
    found = re.findall(rb"id:(.*)\nevent: (\w+)\ndata:(.*)\n\n", piece)
    assert len(found) == piece.count(b"\n\n")
    return [(at.decode(), kind.decode(), data) for at, kind, data in found]


@pytest.mark.parametrize("content_type", [JSON, TEXT])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_has_an_envelope_view(kind: str, content_type: str) -> None:
    values = [*range(7)] if content_type == JSON else [*"0123456"]

    async def story(world: World) -> None:
        await KINDS[kind](world, content_type)
        for query in ("record=3", "tail_records=4", "offset=3_0"):
            if query == "offset=3_0" and kind == "diskless":
                continue
            page = await world.get("s", f"?{query}&max_records=2&record_view=envelope")
            assert (page.status, page.headers["content-type"]) == (200, ENVELOPE)
            assert lines(page.body) == [(3, values[3]), (4, values[4])]
            assert [page.headers[name] for name in NUMBERS] == ["0", "3", "5"]
            assert ("stream-extensions" in page.headers) == (content_type == JSON)
        everything = await world.get("s", "?record=0&record_view=envelope")
        assert lines(everything.body) == [*enumerate(values)]
        tail = await world.get("s", "?record=now&record_view=envelope")
        assert (tail.body, tail.headers["stream-record-start"]) == (b"", "7")
        reader = await world.sse("s", "?live=sse&record=5&record_view=envelope")
        piece = await reader.chunk()
        found = events(piece)
        assert [(name, json.loads(data)) for _, name, data in found[:-1]] == [
            ("data", {"record": record, "value": values[record]}) for record in (5, 6)
        ]
        assert control(piece)["streamNextRecord"] == 7

    play(story)


def test_the_view_has_an_etag_of_its_own_and_lines_without_breaks() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b'[{"a":\n1,\r\n"b":"\\n\xc3\xa4"}, null]')
        page = await world.get("s", "?record=0&record_view=envelope")
        assert lines(page.body) == [(0, {"a": 1, "b": "\nä"}), (1, None)]
        tags = {
            (await world.get("s", f"?record=0{view}")).headers["etag"]
            for view in ("", "&record_view=records", "&record_view=envelope")
        }
        assert len(tags) == 3
        again = await world.get(
            "s", "?record=0&record_view=envelope", if_none_match=page.headers["etag"]
        )
        assert again.status == 304

    play(story)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"diskless"}))  # which is read page by page
def test_control_events_have_the_first_kept_record(kind: str) -> None:
    async def story(world: World) -> None:
        await KINDS[kind](world, JSON)
        reader = await world.sse("s", "?live=sse&record=5")
        assert control(await reader.chunk())["streamFirstRecord"] == 0
        tail = (await world.ask("HEAD", "/v1/stream/s")).headers["stream-next-offset"]
        body = json.dumps({"before": tail}).encode()
        trimmed = await world.ask("POST", "/v1/stream/s/retention", body)
        first = int(json.loads(trimmed.body)["retained_offset"].partition("_")[0])
        assert trimmed.status == 200 and first > 0
        await world.post("s", b"[7]")
        piece = control(await reader.chunk())
        assert (piece["streamFirstRecord"], piece["streamNextRecord"]) == (first, 8)
        again = await world.sse("s", "?live=sse&record=now")
        assert control(await again.chunk())["streamFirstRecord"] == first

    play(story)


def test_live_events_have_one_record_each_and_a_reader_resumes_between_them() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[0,1]")
        wire = await world.wire()
        wire.send(request("GET", "/v1/stream/s?record=now&record_view=envelope&live=sse"))
        head = await wire.answer()
        assert [head.headers.get(name) for name in NUMBERS] == ["0", "2", None]
        assert head.headers["stream-extensions"] == EXTENSION
        kind = "application/vnd.durable-stream-record+json"
        assert head.headers["stream-data-content-type"] == kind
        first = await wire.chunk()
        assert (control(first)["streamNextRecord"], b"event: data" in first) == (2, False)
        await world.post("s", b'["a b",{"c":3},4]')
        piece = await wire.chunk()
        *data, last = events(piece)
        values: list[object] = ["a b", {"c": 3}, 4]
        assert [json.loads(each) for _, _, each in data] == [
            {"record": 2 + at, "value": value} for at, value in enumerate(values)
        ]
        assert (last[1], control(piece)["streamNextRecord"], last[0]) == ("control", 5, data[-1][0])
        for at, (event_id, _, _) in enumerate(data):
            again = await world.sse(
                "s", "?record=now&record_view=envelope&live=sse", last_event_id=event_id
            )
            piece = await again.chunk()
            rest = [json.loads(each)["record"] for _, name, each in events(piece) if name == "data"]
            assert rest == [*range(3 + at, 5)]
            assert control(piece)["streamNextRecord"] == 5
            again.close()
        follows = await world.sse("s", "?live=sse&record_view=envelope&record=5")
        await follows.chunk()
        plain = await world.sse("s", "?live=sse&offset=now")
        await plain.chunk()
        counted = await world.sse("s", "?live=sse&record=now")
        await counted.chunk()
        await world.post("s", b"[5,6]")
        assert events(await follows.chunk())[:-1] == events(await wire.chunk())[:-1]
        piece = await plain.chunk()
        assert b"data:[5,6]\n" in piece
        assert not {"streamFirstRecord", "streamNextRecord"} & control(piece).keys()
        piece = await counted.chunk()
        assert b"data:[5,6]\n" in piece
        assert control(piece)["streamNextRecord"] == 7

    play(story)


def test_a_long_history_is_one_event_a_record_too() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", json.dumps([*range(3000)]).encode())
        reader = await world.sse("s", "?live=sse&record=0&record_view=envelope")
        piece = await reader.chunk()
        *data, _ = events(piece)
        assert [json.loads(each) for _, _, each in data] == [
            {"record": record, "value": record} for record in range(3000)
        ]
        assert len({event_id for event_id, _, _ in data}) == 3000
        await world.post("s", b"3000")
        assert b'data:{"record":3000,"value":3000}\n' in await reader.chunk()

    play(story)


def test_long_polls_have_the_view_and_the_numbers() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[0,1]")
        page = await world.get("s", "?live=long-poll&record=1&record_view=envelope")
        assert (lines(page.body), shown(page)) == ([(1, 1)], (0, 1, 2))
        empty = await world.get("s", "?live=long-poll&record=2&timeout_ms=1&record_view=envelope")
        assert (empty.status, shown(empty)) == (204, (0, 2, 2))

    play(story)


def test_appends_of_json_tell_their_records() -> None:
    async def story(world: World) -> None:
        assert shown(await world.put("s")) == (None, 0, 0)
        wire = await world.wire()
        for record in range(4):  # the later ones have a known head
            wire.send(request("POST", "/v1/stream/s", b"[1,2]", content_type=JSON))
            assert shown(await wire.answer()) == (None, 2 * record, 2 * record + 2)
        assert shown(await world.put("s")) == (None, 8, 8)
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        assert shown(await world.post("s", b"[1,2,3]", **producer)) == (None, 8, 11)
        assert shown(await world.post("s", b"1", record_key="k")) == (None, 11, 12)
        whole = json.dumps([{"value": 1}, {"key": "k", "value": 2}]).encode()
        assert shown(await world.post("s", whole, RECORDS)) == (None, 12, 14)
        assert shown(await world.post("s", b"1", stream_record_match="14")) == (None, 14, 15)
        again = await world.post("s", b"[1,2,3]", **producer)
        assert (again.status, shown(again)) == (204, (None, 8, 11))
        again = await world.post("s", b"[1,2,3]", origin="http://a.example", **producer)
        assert (again.status, shown(again)) == (204, (None, 8, 11))
        assert "Stream-Record-Next".lower() in again.headers["access-control-expose-headers"]
        frames = b"\0\0\0\3[1]\0\0\0\5[2,3]"
        batch = await world.ask("POST", "/v1/stream/s/append-batch", frames, content_type=JSON)
        assert (batch.status, shown(batch)) == (200, (None, 15, 18))
        big = b"[" + b",".join([b'"%b"' % (b"x" * 1000)] * 100) + b"]"
        assert shown(await world.post("s", big)) == (None, 18, 118)
        assert shown(await world.head("s")) == (0, None, 118)
        assert shown(await world.post("s", b"1", stream_closed="true")) == (None, 118, 119)
        new = await world.ask("PUT", "/v1/stream/t", b"[1,2]", content_type=JSON)
        assert shown(new) == (None, 0, 2)
        fork = await world.ask("PUT", "/v1/stream/f", stream_forked_from="/v1/stream/t")
        assert shown(fork) == (None, 2, 2)
        assert shown(await world.get("s")) == (None, None, None)

    play(story)


def test_appends_of_other_types_do_not() -> None:
    async def story(world: World) -> None:
        assert shown(await world.put("s", TEXT)) == (None, None, None)
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        for more in ({}, producer, {"record_key": "k"}, {"stream_record_match": "3"}):
            assert shown(await world.post("s", b"x", TEXT, **more)) == (None, None, None)
        again = await world.post("s", b"x", TEXT, **producer)
        assert again.headers["stream-record-start"] == "1"  # of a repeat, as ever
        assert shown(await world.head("s")) == (None, None, None)

    play(story)


def test_an_error_tells_the_numbers_that_there_are() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[0,1,2,3]")
        await world.ask("PUT", "/v1/stream/s/retention/2_0")
        trimmed = await world.get("s", "?record=1&record_view=envelope")
        assert (trimmed.status, trimmed.headers["stream-record-first"]) == (410, "2")
        beyond = await world.get("s", "?record=5&record_view=envelope")
        assert (beyond.status, beyond.headers["stream-record-next"]) == (400, "4")
        assert shown(await world.head("s")) == (2, None, 4)

    play(story)
