"""POST STREAM/append-batch: frames that are one append."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from front_world import Answer, World, play
from test_authorizer import Gate, guarded

from polynya.base.limits import BATCH_FRAMES_MAX
from polynya.wire.http.frames import BadFrames, frames_of

OCTETS = "application/octet-stream"


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)


async def batch(
    world: World,
    body: bytes,
    content_type: str = OCTETS,
    url: str = "/v1/stream/a/b/append-batch",
    **headers: str,
) -> Answer:
    return await world.ask("POST", url, body, content_type=content_type, **headers)


@pytest.mark.parametrize(
    "url", ["/v1/stream/a/b/append-batch", "/v1/streams/a/b/append-batch", "/a/b/append-batch"]
)
def test_each_frame_is_a_record(url: str) -> None:
    async def story(world: World) -> None:
        await world.put("a/b", OCTETS)
        answer = await batch(world, framed(b"abc", b"d", b"efg"), url=url)
        assert answer.status == 200, answer
        assert answer.headers["stream-next-offset"] == "0000000000000003_0000000000000007"
        assert json.loads(answer.body) == [
            {
                "status": 204,
                "stream_next_offset": f"{last:016}_{byte:016}",
                "stream_record_start": first,
                "stream_record_next": last,
            }
            for (first, last), byte in zip(pairwise(range(4)), (3, 4, 7), strict=True)
        ]
        assert (await world.get("a/b")).body == b"abcdefg"
        assert (await world.get("a/b", "?record=1")).body == b"defg"

    play(story)


def test_a_frame_of_json_is_a_body() -> None:
    async def story(world: World) -> None:
        await world.put("a/b")
        json_type = "application/json"
        answer = await batch(world, framed(b'{"a":1}', b"[2, 3]", b" 4 "), json_type)
        found = json.loads(answer.body)
        assert [each["stream_record_next"] for each in found] == [1, 3, 4]
        assert (await world.get("a/b")).body == b'[{"a":1},2,3,4]'
        one = await batch(world, framed(b"5"), json_type)
        assert json.loads(one.body)[0]["stream_record_start"] == 4
        assert (
            await world.get("a/b", "?offset=" + found[1]["stream_next_offset"])
        ).body == b"[4,5]"
        for frame, code in ((b"[]", "EMPTY_ARRAY"), (b"{", "INVALID_JSON")):
            refused = await batch(world, framed(b"6", frame), json_type)
            assert (refused.status, refused.error) == (400, code)
            assert "frame 2" in json.loads(refused.body)["error"]["message"]
        assert (await world.get("a/b")).body == b'[{"a":1},2,3,4,5]', "all or nothing"

    play(story)


def test_a_producer_repeats_the_whole_batch() -> None:
    async def story(world: World) -> None:
        await world.put("a/b", OCTETS)
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        first = await batch(world, framed(b"a", b"b"), **producer)
        again = await batch(world, framed(b"a", b"b"), **producer)
        assert first.status == again.status == 200
        assert json.loads(again.body) == [{"status": 204}] * 2
        assert again.headers["stream-record-start"] == "0"
        other = await batch(world, framed(b"a", b"c"), **producer)
        assert (other.status, other.error) == (409, "PRODUCER_CONFLICT")
        gap = await batch(world, framed(b"c"), **producer | {"producer_seq": "2"})
        assert (gap.status, gap.error) == (409, "PRODUCER_GAP")
        assert (await world.get("a/b")).body == b"ab"

    play(story)


def test_conditions_and_closing() -> None:
    async def story(world: World) -> None:
        await world.put("a/b", OCTETS)
        tail = '"0000000000000000_0000000000000000"'
        first = await batch(world, framed(b"a"), if_match=tail)
        assert (first.status, first.headers["etag"]) == (
            200,
            '"0000000000000001_0000000000000001"',
        )
        stale = await batch(world, framed(b"a"), if_match=tail)
        assert (stale.status, stale.error) == (412, "PRECONDITION")
        other = await batch(world, framed(b"a"), if_unmodified_since="x")
        assert (other.status, other.error) == (400, "NOT_SUPPORTED")
        keyed = await batch(world, framed(b"a"), record_key="k")
        assert (keyed.status, keyed.error) == (400, "NOT_SUPPORTED")
        closed = await batch(world, framed(b"b"), stream_closed="true")
        assert (closed.status, closed.headers["stream-closed"]) == (200, "true")
        late = await batch(world, framed(b"c"))
        assert (late.status, late.error) == (409, "STREAM_CLOSED")

    play(story)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"abc", "3 bytes of its length"),
        (framed(b"a") + b"\0", "frame 2 has 1 bytes"),
        (framed(b"a") + framed(b"bc")[:-1], "length 2, and 1 bytes follow"),
        (framed(b"a", b""), "frame 2 is empty"),
        (framed(*[b"a"] * (BATCH_FRAMES_MAX + 1)), "more than 512"),
        (b"\xff\xff\xff\xffa", "length 4294967295"),
    ],
    ids=["short", "torn-length", "torn-frame", "empty", "many", "huge"],
)
def test_wrong_frames_append_nothing(body: bytes, text: str) -> None:
    async def story(world: World) -> None:
        await world.put("a/b", OCTETS)
        refused = await batch(world, body)
        assert (refused.status, refused.error) == (400, "INVALID_REQUEST")
        assert text in json.loads(refused.body)["error"]["message"]
        assert (await batch(world, b"")).status == 400
        assert (await world.get("a/b")).body == b""

    play(story)
    with pytest.raises(BadFrames):
        frames_of(body)


def test_frames_are_found_in_a_large_body() -> None:
    async def story(world: World) -> None:
        await world.put("a/b", OCTETS)
        frames = [bytes([number % 256]) * 1000 for number in range(BATCH_FRAMES_MAX)]
        answer = await batch(world, framed(*frames))
        assert len(json.loads(answer.body)) == BATCH_FRAMES_MAX
        assert (await world.get("a/b", "?record=511")).body == frames[-1]

    play(story)


def test_a_token_needs_append(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("all", "admin")
        gate.token("writer", "append:a/")
        gate.token("reader", "read:a/")

    async def story(world: World, gate: Gate) -> None:
        await world.put("a/b", OCTETS, **gate.bearer("all"))
        assert (await batch(world, framed(b"a"), **gate.bearer("writer"))).status == 200
        assert (await batch(world, framed(b"a"), **gate.bearer("reader"))).status == 403
        assert (await batch(world, framed(b"a"))).status == 401

    guarded(tmp_path, story, setup=setup)
