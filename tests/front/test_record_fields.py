"""Records with keys, headers and times over HTTP: written by headers or as whole records, and read
in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from front_world import Answer, World, play

from polynya.base.limits import RECORD_BATCH_RECORDS_MAX
from polynya.wire.headers import RECORDS

JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
NOW = 1_800_000_000_000


def row(offset: int, value: Any, **more: Any) -> dict[str, Any]:
    """A record as it is read; a plain one has nothing else."""
    return {
        "offset": offset,
        "timestamp": None,
        "append_time": NOW,
        "key": None,
        "headers": [],
        "value": value,
    } | more


async def records(world: World, name: str, query: str = "") -> Any:
    page = await world.get(name, query, accept=RECORDS)
    assert (page.status, page.headers["content-type"]) == (200, RECORDS), page
    assert "accept" in page.headers["vary"].lower()
    return json.loads(page.body)


async def events(world: World, name: str, count: int, **headers: str) -> list[str]:
    """The data of the first events of a stream."""
    wire = await world.sse(name, **headers)
    found: list[str] = []
    while len(found) < count:
        lines = (await wire.chunk()).decode().split("\n\n")
        found += [each.partition("data:")[2] for each in lines if "event: data" in each]
    wire.close()
    return found


def test_headers_of_a_request_describe_its_record() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        await world.post("s", b"plain", TEXT)
        answer = await world.post(
            "s",
            b"told",
            TEXT,
            record_key="user 7",
            record_header='a=1, b="x, \\"y\\"", c=:AP8=:, d, a=',
            record_timestamp="2001-09-09T01:46:40Z",
        )
        assert answer.status == 204
        await world.post("s", b"\xff", TEXT, record_key=":/w==:", record_timestamp="1500")
        await world.post("s", b"!", TEXT, record_key="")
        assert await records(world, "s") == [
            row(0, "plain"),
            row(
                1,
                "told",
                key="user 7",
                timestamp=1_000_000_000_000,
                headers=[
                    ["a", "1"],
                    ["b", 'x, "y"'],
                    ["c", {"$base64": "AP8="}],
                    ["d", None],
                    ["a", ""],
                ],
            ),
            row(2, {"$base64": "/w=="}, key={"$base64": "/w=="}, timestamp=1500),
            row(3, "!", key="", timestamp=NOW),
        ]
        assert (await world.get("s")).body == b"plaintold\xff!"

    play(story)


def test_whole_records_are_written_in_the_shape_in_which_they_are_read() -> None:
    async def story(world: World) -> None:
        await world.put("j")
        body = b"""[{"key": "k", "value": {"a":  1.50}, "headers": [["h", null]], "timestamp": 5},
            {"value": null}, {"offset": 7, "value": "text", "key": {"$base64": "/w=="}}]"""
        answer = await world.post("j", body, RECORDS)
        assert answer.status == 204
        assert answer.headers["stream-next-offset"].startswith(f"{3:016d}_")
        await world.post("j", b"[1, [2]]")
        expected = [
            row(0, {"a": 1.5}, key="k", headers=[["h", None]], timestamp=5),
            row(1, None, timestamp=NOW),
            row(2, "text", key={"$base64": "/w=="}, timestamp=NOW),
            row(3, 1),
            row(4, [2]),
        ]
        assert await records(world, "j") == expected
        assert await records(world, "j", f"?offset={2:016d}_{0:016d}") == expected[2:]
        page = await world.get("j")
        assert page.body == b'[{"a":  1.50},null,"text",1,[2]]', "values are kept byte for byte"
        assert (await world.get("j", accept="application/x-ndjson")).body.count(b"\n") == 5
        copy = (await world.get("j", accept=RECORDS)).body
        await world.put("copy")
        await world.post("copy", copy, RECORDS)
        copied = await records(world, "copy")
        assert [{**each, "timestamp": None} for each in copied] == [
            {**each, "timestamp": None} for each in expected
        ], "what is read can be written"
        await world.put("b", BYTES)
        both = b'[{"key": "k", "value": "a"}, {"value": {"$base64": "/w=="}}, {"value": null}]'
        await world.post("b", both, RECORDS)
        assert (await world.get("b")).body == b"a\xff"

    play(story)


def test_producers_sequences_preconditions_and_closing_work_as_ever() -> None:
    async def story(world: World) -> None:
        created = await world.put("s")
        uid = created.headers["stream-incarnation"]
        own = {"producer_id": "p", "producer_epoch": "0", "record_key": "k"}

        async def post(body: bytes, content_type: str = JSON, **headers: str) -> Answer:
            return await world.post("s", body, content_type, **headers)

        assert (await post(b"1", producer_seq="0", **own)).status == 200
        assert (await post(b"1", producer_seq="0", **own)).status == 204
        assert (await post(b"1", producer_seq="2", **own)).error == "PRODUCER_GAP"
        whole = b'[{"value": 2}]'
        own = {"producer_id": "p", "producer_epoch": "0"}
        assert (await post(whole, RECORDS, producer_seq="1", **own)).status == 200
        assert (await post(whole, RECORDS, producer_seq="1", **own)).status == 204
        assert (await post(b"3", record_key="k", stream_seq="b")).status == 204
        assert (await post(whole, RECORDS, stream_seq="a")).error == "SEQ_REGRESSION"
        other = str(int(uid) + 1)
        assert (await post(b"4", record_key="k", stream_incarnation=other)).status == 412
        assert (await post(b"text", TEXT, record_key="k")).error == "CONTENT_TYPE_MISMATCH"
        last = await post(b'[{"value": 4}]', RECORDS, stream_closed="true")
        assert (last.status, last.headers["stream-closed"]) == (204, "true")
        assert (await post(b"5", record_key="k")).error == "STREAM_CLOSED"
        page = await world.get("s")
        assert (page.body, page.headers["stream-closed"]) == (b"[1,2,3,4]", "true")

    play(story)


def test_a_json_array_with_one_key_is_many_records_with_it() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[1, [2]]", record_key="k", record_timestamp="9")
        assert await records(world, "s") == [
            row(0, 1, key="k", timestamp=9),
            row(1, [2], key="k", timestamp=9),
        ]
        assert (await world.post("s", b"[]", record_key="k")).error == "EMPTY_ARRAY"
        many = b"[" + b"1," * RECORD_BATCH_RECORDS_MAX + b"1]"
        assert (await world.post("s", many, record_key="k")).error == "TOO_MANY_RECORDS"
        wide = b"[" + b"1," * 9999 + b"1]"
        refused = await world.post("s", wide, record_key="k" * 5000)
        assert (refused.status, refused.error) == (413, "BODY_TOO_LARGE")
        assert (await world.head("s")).headers["stream-next-offset"].startswith(f"{2:016d}")

    play(story)


def test_large_bodies_keep_their_place_among_the_requests_of_a_connection() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        wire = await world.wire()
        large = b"x" * 200_000
        for body in (large, b"a", large, b"b"):
            key = b"Record-Key: k\r\n" if body is large else b""
            wire.send(
                b"POST /v1/stream/s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n%b"
                b"Content-Length: %d\r\n\r\n%b" % (key, len(body), body)
            )
        for _ in range(4):
            assert (await wire.answer(method="POST")).status == 204
        assert (await world.get("s")).body == large + b"a" + large + b"b"

    play(story)


def test_live_readers_get_values_or_whole_records() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1", record_key="k")
        values = world.meanwhile(events(world, "s", 4))
        whole = world.meanwhile(events(world, "s", 4, accept=RECORDS))
        again = world.meanwhile(events(world, "s", 4, accept=RECORDS))
        await world.until(lambda: len(world.front.readers.live) == 3)
        polled = world.meanwhile(
            world.get("s", "?live=long-poll&offset=now&timeout_ms=60000", accept=RECORDS)
        )
        await world.until(lambda: world.front.readers.waiters)
        await world.post("s", b"[2, 3]", record_header="h=v")
        await world.post("s", b"4")
        large = json.dumps("x" * 100_000).encode()
        await world.post("s", large, record_key="k")
        assert [json.loads(each) for each in await values] == [[1], [2, 3], [4], ["x" * 100_000]]
        got = [[each["value"] for each in json.loads(data)] for data in await whole]
        assert got == [[1], [2, 3], [4], ["x" * 100_000]]
        assert json.loads((await again)[1]) == [
            row(1, 2, headers=[["h", "v"]], timestamp=NOW),
            row(2, 3, headers=[["h", "v"]], timestamp=NOW),
        ]
        assert json.loads((await polled).body)[0] == row(1, 2, headers=[["h", "v"]], timestamp=NOW)

    play(story)


def test_records_of_bytes_have_borders_that_a_page_keeps() -> None:
    async def story(world: World) -> None:
        await world.put("s", BYTES)
        large = b"x" * 200_000
        for body in (b"a", large, b"c"):
            await world.post("s", body, BYTES)
        found, offset, pages = [], "-1", 0
        while True:
            page = await world.get("s", f"?offset={offset}&max_bytes=100", accept=RECORDS)
            found += json.loads(page.body)
            offset, pages = page.headers["stream-next-offset"], pages + 1
            if "stream-up-to-date" in page.headers:
                break
        assert found == [row(0, "a"), row(1, large.decode()), row(2, "c")]
        assert pages == 3, "what is shown counts"

    play(story)


WRONG = {
    "an open base64": ({"record_key": ":AA"}, "Record-Key"),
    "no base64": ({"record_key": ":?:"}, "Record-Key"),
    "a name with a space": ({"record_header": "a b=1"}, "Record-Header"),
    "an open quote": ({"record_header": 'a="1'}, "Record-Header"),
    "no name": ({"record_header": "=1"}, "Record-Header"),
    "an age": ({"record_timestamp": "10m"}, "Record-Timestamp"),
    "a time too late": ({"record_timestamp": "999999999999999"}, "Record-Timestamp"),
    "no time": ({"record_timestamp": "soon"}, "Record-Timestamp"),
}
WRONG_BODIES = {
    "no array": b'{"value": 1}',
    "no value": b'[{"key": "k"}]',
    "an unknown field": b'[{"value": 1, "partition": 2}]',
    "a key of a number": b'[{"value": 1, "key": 7}]',
    "a header without a value": b'[{"value": 1, "headers": [["a"]]}]',
    "a time before 1970": b'[{"value": 1, "timestamp": -1}]',
    "a wrong base64": b'[{"value": 1, "key": {"$base64": "?"}}]',
    "bytes that are no text": b'[{"value": "\xff"}]',
    "too deep": b'[{"value": ' + b"[" * 200 + b"]" * 200 + b"}]",
    "cut off": b'[{"value": 1}',
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_header_is_named(what: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        headers, named = WRONG[what]
        refused = await world.post("s", b"1", **headers)
        assert (refused.status, refused.error) == (400, "INVALID_HEADER")
        assert named.encode() in refused.body

    play(story)


def test_wrong_bodies_and_combinations_are_refused() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for what, body in WRONG_BODIES.items():
            refused = await world.post("s", body, RECORDS)
            assert (refused.status, refused.error) == (400, "INVALID_JSON"), what
        assert (await world.post("s", b"[]", RECORDS)).error == "EMPTY_ARRAY"
        assert (await world.post("none", b'[{"value": 1}]', RECORDS)).error == "NOT_FOUND"
        both = await world.post("s", b'[{"value": 1}]', RECORDS, record_key="k")
        assert both.error == "INVALID_HEADER"
        bare = await world.post("s", b"", JSON, record_key="k", stream_closed="true")
        assert bare.error == "INVALID_HEADER"
        assert (await world.put("new", JSON, record_key="k")).error == "INVALID_HEADER"
        assert (await world.put("new", RECORDS)).error == "INVALID_HEADER"
        await world.put("b", TEXT)
        assert (await world.post("b", b'[{"value": 1}]', RECORDS)).error == "INVALID_JSON"
        assert (await world.get("s")).body == b"[]"

    play(story)


def test_a_fork_divides_no_batch() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        await world.post("s", b"ab", TEXT)
        await world.post("s", b"cd", TEXT, record_key="k")
        await world.post("s", b'[{"value": "e"}, {"value": "f"}]', RECORDS)
        start = "/v1/stream/s"

        async def fork(name: str, offset: int, sub: int = 0) -> Answer:
            at = f"{offset:016d}_{0:016d}"
            return await world.put(
                name,
                TEXT,
                stream_forked_from=start,
                stream_fork_offset=at,
                **({"stream_fork_sub_offset": str(sub)} if sub else {}),
            )

        assert (await fork("one", 0, 1)).status == 201
        assert (await fork("two", 2)).status == 201
        for refused in (await fork("cut", 1, 1), await fork("within", 3)):
            assert (refused.status, refused.error) == (400, "SUB_OFFSET")
            assert b"appended together" in refused.body
        assert (await world.get("one")).body == b"a"
        assert await records(world, "two") == [
            row(0, "ab"),
            row(1, "cd", key="k", timestamp=NOW),
        ]

    play(story)
