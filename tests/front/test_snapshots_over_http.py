"""Snapshots of streams as clients see them."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable

import pytest
from front_world import Answer, World, play, request

from polynya.base.limits import SNAPSHOT_GRACE_MS, SNAPSHOTS_SUPERSEDED_MAX
from polynya.front.http.protocol.settings import HttpSettings

NAME = "docs/a"
URL = f"/v1/stream/{NAME}"
JSON = "application/json"


def at(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


def run(story: Callable[[World], Awaitable[None]]) -> None:
    play(story, settings=HttpSettings(long_poll_seconds=30.0, object_store=False))


def message(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


async def filled(world: World, records: int = 5, name: str = NAME) -> list[str]:
    """Create a stream with records of one JSON number each, and return their offsets."""
    places = [(await world.put(name)).headers["stream-next-offset"]]
    for number in range(records):
        answer = await world.post(name, b"%d" % number)
        places.append(answer.headers["stream-next-offset"])
    return places


async def publish(world: World, offset: str, body: bytes = b'{"n":1}', **headers: str) -> Answer:
    headers.setdefault("content_type", JSON)
    return await world.ask("PUT", f"{URL}/snapshot/{offset}", body, **headers)


async def published(world: World, offset: str, body: bytes = b'{"n":1}', **headers: str) -> Answer:
    answer = await publish(world, offset, body, **headers)
    assert answer.status == 201, answer
    return answer


@pytest.mark.parametrize("url", [URL, f"/v1/streams/{NAME}", f"/{NAME}"])
def test_a_snapshot_is_published_read_listed_and_deleted(url: str) -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        assert (await world.ask("GET", f"{url}/snapshot")).error == "NO_SNAPSHOT"
        body = b'{"sum": 3}'
        digest = hashlib.sha256(body).digest()
        target = f"{url}/snapshot/{places[3]}"
        made = await world.ask("PUT", target, body, content_type=JSON)
        assert (made.status, made.body) == (201, b"")
        assert made.headers["stream-snapshot-offset"] == places[3]
        assert made.headers["repr-digest"] == f"sha-256=:{b64encode(digest).decode()}:"
        assert made.headers["location"].endswith(target)
        again = await world.ask("PUT", target, body, content_type=JSON)
        assert (again.status, again.headers["repr-digest"]) == (204, made.headers["repr-digest"])
        newest = await world.ask("GET", f"{url}/snapshot")
        assert (newest.status, newest.headers["location"]) == (307, target)
        assert newest.headers["cache-control"] == "no-store"
        found = await world.ask("GET", target)
        assert (found.status, found.body) == (200, body)
        assert found.headers["content-type"] == JSON
        assert found.headers["stream-next-offset"] == places[3]
        assert found.headers["content-security-policy"] == "sandbox"
        tag = found.headers["etag"]
        assert (await world.ask("GET", target, if_none_match=tag)).status == 304
        head = await world.ask("HEAD", target)
        assert (head.status, head.headers["content-length"]) == (200, str(len(body)))
        listed = json.loads((await world.ask("GET", f"{url}/snapshots")).body)["snapshots"]
        assert [(each["offset"], each["bytes"], each["origin"]) for each in listed] == [
            (places[3], len(body), "")
        ]
        assert (await world.ask("DELETE", target)).status == 204
        assert (await world.ask("GET", target)).error == "NO_SNAPSHOT"
        assert (await world.ask("DELETE", target)).error == "NO_SNAPSHOT"

    run(story)


def test_a_part_of_a_body_is_read_by_a_range() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[2], b"0123456789", content_type="text/plain")
        target = f"{URL}/snapshot/{places[2]}"
        for asked, body, told in (
            ("bytes=2-4", b"234", "bytes 2-4/10"),
            ("bytes=7-", b"789", "bytes 7-9/10"),
            ("bytes=-2", b"89", "bytes 8-9/10"),
            ("bytes=8-99", b"89", "bytes 8-9/10"),
        ):
            found = await world.ask("GET", target, range=asked)
            assert (found.status, found.body, found.headers["content-range"]) == (206, body, told)
        for asked in ("bytes=4-2", "bytes=-", "lines=1-2", "bytes=0-1,4-5"):
            assert (await world.ask("GET", target, range=asked)).status == 200, asked
        refused = await world.ask("GET", target, range="bytes=10-")
        assert (refused.status, refused.error) == (416, "RANGE_NOT_SATISFIABLE")
        assert refused.headers["content-range"] == "bytes */10"
        assert (await world.ask("GET", target, range="bytes=2-4", if_range='"x"')).status == 200

    run(story)


def test_a_publish_that_does_not_fit_is_refused() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[3])
        older = await publish(world, places[2])
        assert (older.status, older.error) == (409, "SNAPSHOT_OLDER")
        assert older.headers["stream-snapshot-offset"] == places[3]
        other = await publish(world, places[3], b'{"n":2}')
        assert (other.status, other.error) == (409, "SNAPSHOT_CONFLICT")
        beyond = await publish(world, at(6, 12))
        assert (beyond.status, beyond.error) == (400, "OFFSET_BEYOND_TAIL")
        for wrong in (at(4, 7), "7", "now", "-1", "x"):
            answer = await publish(world, wrong)
            assert (answer.status, answer.error) == (400, "INVALID_OFFSET"), wrong
        bad = await publish(world, places[4], b'{"n":')
        assert (bad.status, bad.error) == (400, "INVALID_JSON")
        digest = await publish(world, places[4], content_digest="sha-256=:AAAA:")
        assert digest.error == "DIGEST_MISMATCH"
        mismatch = await publish(world, places[4], stream_incarnation="99")
        assert (mismatch.status, mismatch.error) == (412, "INCARNATION_MISMATCH")
        missing = await world.ask("PUT", f"/v1/stream/none/snapshot/{at(0, 0)}", b"x")
        assert missing.error == "NOT_FOUND"
        assert (await publish(world, places[4], stream_snapshot_match="x")).error == "NOT_SUPPORTED"
        trimmed = await world.ask("PUT", f"{URL}/retention/{places[2]}")
        assert trimmed.status == 204
        assert (await publish(world, places[1])).error == "TRIMMED"
        assert [each["offset"] for each in await listed(world)] == [places[3]]

    run(story)


async def listed(world: World) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((await world.ask("GET", f"{URL}/snapshots")).body)[
        "snapshots"
    ]
    return found


def test_a_byte_position_names_a_record_too() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        assert (await published(world, "6")).headers["stream-snapshot-offset"] == places[3]
        assert (await world.ask("GET", f"{URL}/snapshot/6")).status == 200
        assert (await published(world, "10")).headers["stream-snapshot-offset"] == places[5]

    run(story)


def test_an_empty_body_and_a_large_one_are_snapshots() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[1], b"", content_type="text/plain")
        assert (await world.ask("GET", f"{URL}/snapshot/{places[1]}")).body == b""
        large = bytes(range(256)) * 4096
        await published(world, places[2], large, content_type="application/octet-stream")
        found = await world.ask("GET", f"{URL}/snapshot/{places[2]}")
        assert found.body == large and found.headers["content-type"] == "application/octet-stream"

    run(story)


def parts_of(answer: Answer) -> list[tuple[dict[str, str], bytes]]:
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/mixed"
    pieces = (b"\r\n" + answer.body).split(f"\r\n--{boundary}".encode())
    assert (pieces[0], pieces[-1]) == (b"", b"--\r\n")
    found = []
    for piece in pieces[1:-1]:
        head, _, body = piece[2:].partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode().split("\r\n"))
        found.append(({name.lower(): value for name, _, value in lines}, body))
    return found


def test_a_bootstrap_is_the_newest_snapshot_and_the_records_behind_it() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        plain = await world.ask("GET", f"{URL}/bootstrap")
        assert [body for _, body in parts_of(plain)] == [b"[0,1,2,3,4]"]
        await published(world, places[1], b'{"old":1}')
        await published(world, places[3], b'{"sum":3}')
        found = await world.ask("GET", f"{URL}/bootstrap")
        assert found.headers["stream-next-offset"] == places[5]
        assert found.headers["stream-up-to-date"] == "true"
        (first, snapshot), (second, tail) = parts_of(found)
        assert (first["content-type"], first["stream-snapshot-offset"]) == (JSON, places[3])
        assert (second["content-type"], second["stream-next-offset"]) == (JSON, places[5])
        assert (snapshot, tail) == (b'{"sum":3}', b"[3,4]")
        tag = found.headers["etag"]
        assert (await world.ask("GET", f"{URL}/bootstrap", if_none_match=tag)).status == 304
        envelope = await world.ask("GET", f"{URL}/bootstrap", accept=JSON)
        assert json.loads(envelope.body) == {
            "snapshot": {"sum": 3},
            "snapshot_offset": places[3],
            "records": [3, 4],
            "next_offset": places[5],
            "up_to_date": True,
        }
        await world.post(NAME, b"5")
        again = await world.ask("GET", f"{URL}/bootstrap", if_none_match=tag)
        assert (again.status, parts_of(again)[1][1]) == (200, b"[3,4,5]")

    run(story)


def test_half_of_a_document_is_never_an_answer() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[2], b'{"sum":1}')
        assert (await world.ask("PUT", f"{URL}/retention/{places[3]}")).status == 204
        for query in ("", "?live=sse"):
            refused = await world.ask("GET", f"{URL}/bootstrap{query}")
            assert (refused.status, refused.error) == (410, "TRIMMED")
            assert refused.headers["stream-retained-offset"] == places[3]
        await published(world, places[4], b'{"sum":6}')
        assert parts_of(await world.ask("GET", f"{URL}/bootstrap"))[1][1] == b"[4]"

    run(story)


def test_a_live_bootstrap_goes_on_without_a_second_snapshot() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[3], b'{"sum":3}')
        wire = await world.wire()
        wire.send(request("GET", f"{URL}/bootstrap?live=sse"))
        assert (await wire.answer()).status == 200
        event = await wire.chunk()
        assert event.startswith(f"id:{places[3]}~".encode())
        assert event.endswith(b'event: snapshot\ndata:{"sum":3}\n\n')
        data = await wire.chunk()
        assert b"event: data\ndata:[3,4]\n" in data
        await world.post(NAME, b"5")
        assert b"data:[5]" in await wire.chunk()
        wire.close()
        last = event.decode().split("\n", 1)[0].removeprefix("id:")
        again = await world.wire()
        again.send(request("GET", f"{URL}/bootstrap?live=sse", last_event_id=last))
        assert (await again.answer()).status == 200
        assert b"event: data\ndata:[3,4,5]" in await again.chunk()

    run(story)


def test_a_snapshot_ends_with_its_stream() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await published(world, places[3])
        assert (await world.ask("DELETE", URL)).status == 204
        assert (await world.ask("GET", f"{URL}/snapshot/{places[3]}")).error == "NOT_FOUND"
        await filled(world)
        assert await listed(world) == []
        streams = [len(group.directory.streams) for group in world.service.local.machines.values()]
        assert sum(streams) == 1

    run(story)


def test_a_superseded_snapshot_can_be_read_for_its_grace() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        for number in (1, 2, 3):
            await published(world, places[number], b"%d" % number)
        assert [each["superseded"] for each in await listed(world)] == [True, False, False]
        target = f"{URL}/snapshot/{places[1]}"
        world.service.clock += SNAPSHOT_GRACE_MS - 1
        assert (await world.ask("GET", target)).body == b"1"
        world.service.clock += 1
        gone = await world.ask("GET", target)
        assert (gone.status, gone.error) == (410, "SNAPSHOT_GONE")
        assert gone.headers["stream-snapshot-offset"] == places[3]
        assert gone.headers["link"] == f'<{URL}/snapshot/{places[3]}>; rel="snapshot"'

    run(story)


def test_too_many_superseded_snapshots_are_refused_for_a_while() -> None:
    async def story(world: World) -> None:
        most = SNAPSHOTS_SUPERSEDED_MAX + 2
        places = await filled(world, most + 1)
        for number in range(1, most + 1):
            await published(world, places[number])
        soon = await publish(world, places[most + 1])
        assert (soon.status, soon.error) == (429, "SNAPSHOT_TOO_SOON")
        world.service.clock += int(soon.headers["retry-after"]) * 1000
        await published(world, places[most + 1])

    run(story)


def test_a_read_behind_the_trim_names_the_snapshot_to_begin_with() -> None:
    async def story(world: World) -> None:
        places = await filled(world)
        await world.ask("PUT", f"{URL}/retention/{places[2]}")
        queries = (f"?offset={places[1]}", f"?offset={places[1]}&live=long-poll")
        queries += (f"?offset={places[1]}&live=sse",)
        for query in queries:
            answer = await world.get(NAME, query)
            assert (answer.status, "link" in answer.headers) == (410, False)
        await published(world, places[3])
        for query in queries:
            answer = await world.get(NAME, query)
            assert (answer.status, answer.error) == (410, "TRIMMED"), query
            assert answer.headers["stream-retained-offset"] == places[2]
            assert answer.headers["stream-snapshot-offset"] == places[3]
            assert answer.headers["link"] == f'<{URL}/snapshot/{places[3]}>; rel="snapshot"'

    run(story)
