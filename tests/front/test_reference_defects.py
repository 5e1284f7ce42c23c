"""Defects of the reference server that the official suite does not cover. Each row of the list
must be right here."""

from __future__ import annotations

import json

import pytest
from front_world import Answer, World, play, request

TEXT = "text/plain"


@pytest.mark.parametrize("value", ["TRUE", "True", "true"])
def test_close_counts_in_any_case(value: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        answer = await world.ask("POST", "/v1/stream/s", stream_closed=value)
        assert (answer.status, answer.headers["stream-closed"]) == (204, "true")

    play(story)


@pytest.mark.parametrize("value", ["false", "1", "yes", ""])
def test_other_values_of_close_are_ignored(value: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (await world.post("s", b"1", stream_closed=value)).status == 204
        assert "stream-closed" not in (await world.head("s")).headers

    play(story)


def test_a_waiting_long_poll_gets_the_append_that_closes() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        waiting = world.meanwhile(world.get("s", "?offset=-1&live=long-poll&timeout_ms=5000"))
        await world.until(lambda: world.front.readers.waiters)
        assert (await world.post("s", b'{"last":1}', stream_closed="true")).status == 204
        answer = await waiting
        assert (answer.status, answer.body, answer.headers["stream-closed"]) == (
            200,
            b'[{"last":1}]',
            "true",
        )
        assert (
            answer.headers["stream-next-offset"]
            == (await world.head("s")).headers["stream-next-offset"]
        )

    play(story)


def test_an_etag_of_another_life_does_not_match() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        old = (await world.get("s")).headers["etag"]
        assert (await world.get("s", if_none_match=old)).status == 304
        await world.ask("DELETE", "/v1/stream/s")
        await world.put("s")
        await world.post("s", b"2")
        answer = await world.get("s", if_none_match=old)
        assert (answer.status, answer.body) == (200, b"[2]")

    play(story)


@pytest.mark.parametrize("shape", ["{}", "W/{}", '"other", {}', "*", 'W/"other" , W/{}'])
def test_if_none_match_as_the_rfc_has_it_and_a_304_that_helps(shape: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        full = await world.get("s", "?offset=-1")
        answer = await world.get(
            "s", "?offset=-1", if_none_match=shape.format(full.headers["etag"])
        )
        assert (answer.status, answer.body) == (304, b"")
        for name in ("etag", "stream-next-offset", "stream-up-to-date", "cache-control"):
            assert answer.headers[name] == full.headers[name]

    play(story)


def test_the_etag_changes_on_close() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        old = (await world.get("s")).headers["etag"]
        await world.ask("POST", "/v1/stream/s", stream_closed="true")
        answer = await world.get("s", if_none_match=old)
        assert answer.status == 200
        assert answer.headers["etag"].endswith(':c"')
        assert answer.headers["stream-closed"] == "true"

    play(story)


def test_pages_before_the_tail_may_be_cached_and_the_tail_may_not() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        for _ in range(3):
            await world.post("s", b"0123456789", TEXT)
        page = await world.get("s", "?max_bytes=10")
        assert (page.body, page.headers.get("stream-up-to-date")) == (b"0123456789", None)
        assert page.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
        assert (await world.get("s")).headers["cache-control"] == "no-cache"
        assert (await world.get("s", "?offset=now")).headers["cache-control"] == "no-store"

    play(story)


@pytest.mark.parametrize(
    "value", ["12345678901234567890", "1.0", '{"b": 1,  "a": 1.50, "a": 2}', '"\\u00e9\\/"']
)
def test_json_comes_back_byte_for_byte(value: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (await world.post("s", value.encode())).status == 204
        assert (await world.get("s")).body == b"[" + value.encode() + b"]"

    play(story)


def test_json_with_invalid_utf8_is_refused() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        answer = await world.post("s", b'"\xff\xfe"')
        assert (answer.status, answer.error) == (400, "INVALID_JSON")
        assert (await world.get("s")).body == b"[]"

    play(story)


def test_a_put_with_invalid_json_creates_nothing() -> None:
    async def story(world: World) -> None:
        answer = await world.ask("PUT", "/v1/stream/s", b"{broken", content_type="application/json")
        assert (answer.status, answer.error) == (400, "INVALID_JSON")
        assert (await world.head("s")).status == 404

    play(story)


def test_lifetimes_that_are_over_at_once() -> None:
    async def story(world: World) -> None:
        assert (await world.put("a", stream_ttl="0")).status == 201
        assert (await world.head("a")).status == 404
        assert (await world.put("b", stream_expires_at="2001-01-01T00:00:00Z")).status == 201
        assert (await world.get("b")).status == 404

    play(story)


@pytest.mark.parametrize(
    "headers",
    [
        {"stream_ttl": "99999999999999999999"},
        {"stream_expires_at": "2099-01-01"},
        {"stream_expires_at": "Wed, 21 Oct 2099 07:28:00 GMT"},
    ],
)
def test_lifetimes_that_are_none(headers: dict[str, str]) -> None:
    async def story(world: World) -> None:
        answer = await world.put("s", **headers)
        assert (answer.status, answer.error) == (400, "INVALID_HEADER")
        assert (await world.head("s")).status == 404

    play(story)


def test_the_same_instant_in_other_words_is_the_same_configuration() -> None:
    async def story(world: World) -> None:
        assert (await world.put("s", stream_expires_at="2099-01-01T00:00:00Z")).status == 201
        assert (
            await world.put("s", stream_expires_at="2099-01-01T02:00:00.000+02:00")
        ).status == 200
        assert (await world.put("s", stream_expires_at="2099-01-01T00:00:01Z")).status == 409

    play(story)


def test_beyond_the_tail_catch_up_is_refused_and_live_reads_wait() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        beyond = "?offset=0000000000000005_0000000000000050"
        answer = await world.get("s", beyond)
        assert (answer.status, answer.error) == (400, "OFFSET_BEYOND_TAIL")
        assert answer.headers["stream-next-offset"] == "0000000000000001_0000000000000002"
        poll = await world.get("s", beyond + "&live=long-poll&timeout_ms=30")
        assert (poll.status, poll.headers["stream-next-offset"]) == (
            204,
            "0000000000000001_0000000000000002",
        )
        reader = await world.sse("s", beyond + "&live=sse")
        assert b"upToDate" in await reader.chunk()
        for _ in range(6):
            await world.post("s", b"1")
        assert b'"streamNextOffset":"0000000000000006_' in await reader.chunk()

    play(story)


def test_an_unknown_live_mode_is_refused() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        answer = await world.get("s", "?offset=-1&live=bogus")
        assert (answer.status, answer.error) == (400, "INVALID_PARAMETER")

    play(story)


def test_a_duplicate_says_where_the_tail_is() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        first = await world.post("s", b"1", **producer)
        again = await world.post("s", b"1", **producer)
        assert (first.status, again.status) == (200, 204)
        assert (
            first.headers["stream-next-offset"]
            == again.headers["stream-next-offset"]
            == "0000000000000001_0000000000000002"
        )
        assert (again.headers["producer-epoch"], again.headers["producer-seq"]) == ("0", "0")

    play(story)


def test_a_repeat_of_each_of_the_last_appends_says_where_it_went() -> None:
    """Repeat appends, also those with others in flight behind them, and over the path of repeated
    request shapes."""

    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()

        async def produce(number: int, body: bytes) -> Answer:
            keys = {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(number)}
            wire.send(
                request("POST", "/v1/stream/s", body, content_type="application/json", **keys)
            )
            return await wire.answer()

        for number in range(7):
            first = await produce(number, b"[1,2]")
            assert (first.status, first.headers["stream-record-start"]) == (200, str(2 * number))
        repeats = [await produce(number, b"[1,2]") for number in range(7)]
        assert [each.status for each in repeats] == [204] * 7
        assert [each.headers.get("stream-record-start") for each in repeats] == [
            None,
            None,
            "4",
            "6",
            "8",
            "10",
            "12",
        ]
        assert {each.headers["stream-next-offset"] for each in repeats} == {
            repeats[0].headers["stream-next-offset"]
        }
        keys = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "7"}
        assert (await world.post("s", b"[9]", stream_closed="true", **keys)).status == 200
        again = await world.post("s", b"[9]", stream_closed="true", **keys)
        assert (
            again.status,
            again.headers["stream-closed"],
            again.headers["stream-record-start"],
        ) == (204, "true", "14")

    play(story)


def test_sse_ends_after_about_a_minute() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        world.front.sweep(world.front.context.ticks.now + 30)
        assert world.front.readers.live
        world.front.sweep(world.front.context.ticks.now + 75)
        while await reader.chunk():
            pass
        assert await reader.ended()

    play(story)


def test_text_split_inside_a_character_corrupts_nothing_else() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        reader = await world.sse("s")
        await reader.chunk()
        for piece in (b"a\xe2\x98", b"\x83b", "ok ☃".encode()):
            await world.post("s", piece, TEXT)
        shown = [(await reader.chunk()).decode() for _ in range(3)]
        assert [
            "data:a\ufffd\n" in shown[0],
            "data:\ufffdb\n" in shown[1],
            "data:ok ☃\n" in shown[2],
        ] == [True] * 3
        gathered = await world.sse("s")
        assert "data:a☃bok ☃\n" in (await gathered.chunk()).decode()

    play(story)


def test_line_ends_of_text_start_new_data_lines() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        await world.post("s", b"a\rb\r\nc\nd", TEXT)
        reader = await world.sse("s")
        assert b"data:a\ndata:b\ndata:c\ndata:d\n\n" in await reader.chunk()

    play(story)


def test_json_of_several_appends_is_one_array_per_event() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[1,2]")
        await world.post("s", b"[[3]]")
        reader = await world.sse("s")
        data = (await reader.chunk()).decode().split("data:")[1].split("\n")[0]
        assert json.loads(data) == [1, 2, [3]]

    play(story)


def test_an_answer_that_reached_the_tail_is_not_renewed_after_more_was_appended() -> None:
    """Expect the same bytes, but no longer as up to date: a 304 would keep `Stream-Up-To-Date` in a
    cache."""

    async def story(world: World) -> None:
        await world.put("s", TEXT)
        await world.post("s", b"0123456789", TEXT)
        first = await world.get("s", "?max_bytes=10")
        assert first.headers["stream-up-to-date"] == "true"
        await world.post("s", b"0123456789", TEXT)
        again = await world.get("s", "?max_bytes=10", if_none_match=first.headers["etag"])
        assert (again.status, again.body, again.headers.get("stream-up-to-date")) == (
            200,
            b"0123456789",
            None,
        )

    play(story)


def test_head_answers_if_none_match() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        etag = (await world.get("s")).headers["etag"]
        assert (await world.ask("HEAD", "/v1/stream/s")).headers["etag"] == etag
        answer = await world.ask("HEAD", "/v1/stream/s", if_none_match=etag)
        assert (answer.status, answer.headers["cache-control"]) == (304, "no-store")
        await world.ask("POST", "/v1/stream/s", stream_closed="true")
        assert (await world.ask("HEAD", "/v1/stream/s", if_none_match=etag)).status == 200

    play(story)


def test_what_came_after_now_is_kept_by_nobody() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        wire.send(request("GET", "/v1/stream/s?offset=now&live=long-poll&timeout_ms=60000"))
        await world.until(lambda: world.front.readers.waiters)
        await world.post("s", b"1")
        answer = await wire.answer()
        assert (answer.status, answer.body, answer.headers["cache-control"]) == (
            200,
            b"[1]",
            "no-store",
        )
        assert "etag" not in answer.headers

    play(story)


@pytest.mark.parametrize("instant", ["9999-12-31T23:59:59-10:00", "9999-12-31T23:59:60Z"])
def test_an_instant_that_cannot_be_shown_is_not_taken(instant: str) -> None:
    async def story(world: World) -> None:
        assert (await world.put("s", stream_expires_at=instant)).error == "INVALID_HEADER"
        assert (await world.put("s", stream_expires_at="9999-12-31T23:59:59.999Z")).status == 201
        assert (await world.head("s")).headers["stream-expires-at"] == "9999-12-31T23:59:59.999Z"

    play(story)


def test_numbers_too_large_for_the_log_are_no_faults() -> None:
    async def story(world: World) -> None:
        await world.put("logs/s")
        huge = "9" * 20
        assert (await world.ask("GET", f"/logs/s?offset={huge}")).error == "OFFSET_BEYOND_TAIL"
        assert (
            await world.post("logs/s", b"1", stream_incarnation=huge)
        ).error == "INCARNATION_MISMATCH"
        assert (
            await world.ask("DELETE", "/logs/s", stream_incarnation=huge)
        ).error == "INCARNATION_MISMATCH"

    play(story)
