"""Snapshots of streams as clients see them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, World, play, request
from test_authorizer import Gate, guarded

from polynya.base import levels
from polynya.base.limits import SNAPSHOT_GRACE_MS, SNAPSHOTS_SUPERSEDED_MAX
from polynya.base.names import companion_of
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.snapshots import bootstrap, show
from polynya.local.api import Refusal, StreamInfo
from polynya.service.snapshot_sweep import sweep_snapshots
from polynya.stream.parts import Retention, SnapshotRule
from polynya.stream.replies import Code

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
    offsets = [(await world.put(name)).headers["stream-next-offset"]]
    for number in range(records):
        answer = await world.post(name, b"%d" % number)
        offsets.append(answer.headers["stream-next-offset"])
    return offsets


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
        offsets = await filled(world)
        assert (await world.ask("GET", f"{url}/snapshot")).error == "NO_SNAPSHOT"
        body = b'{"sum": 3}'
        digest = hashlib.sha256(body).digest()
        target = f"{url}/snapshot/{offsets[3]}"
        made = await world.ask("PUT", target, body, content_type=JSON)
        assert (made.status, made.body) == (201, b"")
        assert made.headers["stream-snapshot-offset"] == offsets[3]
        assert made.headers["repr-digest"] == f"sha-256=:{b64encode(digest).decode()}:"
        assert made.headers["location"].endswith(target)
        again = await world.ask("PUT", target, body, content_type=JSON)
        assert (again.status, again.headers["repr-digest"]) == (204, made.headers["repr-digest"])
        newest = await world.ask("GET", f"{url}/snapshot")
        assert (newest.status, newest.headers["location"]) == (307, target)
        assert newest.headers["cache-control"] == "no-store"
        head = await world.head(NAME)
        assert head.headers["stream-snapshot-offset"] == offsets[3]
        assert head.headers["stream-snapshot-digest"] == f"sha-256={digest.hex()}"
        found = await world.ask("GET", target)
        assert (found.status, found.body) == (200, body)
        assert found.headers["content-type"] == JSON
        assert found.headers["stream-next-offset"] == offsets[3]
        assert found.headers["content-security-policy"] == "sandbox"
        tag = found.headers["etag"]
        assert (await world.ask("GET", target, if_none_match=tag)).status == 304
        head = await world.ask("HEAD", target)
        assert (head.status, head.headers["content-length"]) == (200, str(len(body)))
        listed = json.loads((await world.ask("GET", f"{url}/snapshots")).body)["snapshots"]
        assert [(each["offset"], each["bytes"], each["origin"]) for each in listed] == [
            (offsets[3], len(body), "")
        ]
        assert (await world.ask("DELETE", target)).status == 204
        assert (await world.ask("GET", target)).error == "NO_SNAPSHOT"
        assert (await world.ask("DELETE", target)).error == "NO_SNAPSHOT"

    run(story)


def test_a_part_of_a_body_is_read_by_a_range() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[2], b"0123456789", content_type="text/plain")
        target = f"{URL}/snapshot/{offsets[2]}"
        for asked, body, content_range in (
            ("bytes=2-4", b"234", "bytes 2-4/10"),
            ("bytes=7-", b"789", "bytes 7-9/10"),
            ("bytes=-2", b"89", "bytes 8-9/10"),
            ("bytes=8-99", b"89", "bytes 8-9/10"),
        ):
            found = await world.ask("GET", target, range=asked)
            assert (found.status, found.body, found.headers["content-range"]) == (
                206,
                body,
                content_range,
            )
        for asked in ("bytes=4-2", "bytes=-", "lines=1-2", "bytes=0-1,4-5"):
            assert (await world.ask("GET", target, range=asked)).status == 200, asked
        refused = await world.ask("GET", target, range="bytes=10-")
        assert (refused.status, refused.error) == (416, "RANGE_NOT_SATISFIABLE")
        assert refused.headers["content-range"] == "bytes */10"
        assert (await world.ask("GET", target, range="bytes=2-4", if_range='"x"')).status == 200

    run(story)


def test_a_publish_that_does_not_fit_is_refused() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[3])
        older = await publish(world, offsets[2])
        assert (older.status, older.error) == (409, "SNAPSHOT_OLDER")
        assert older.headers["stream-snapshot-offset"] == offsets[3]
        other = await publish(world, offsets[3], b'{"n":2}')
        assert (other.status, other.error) == (409, "SNAPSHOT_CONFLICT")
        beyond = await publish(world, at(6, 12))
        assert (beyond.status, beyond.error) == (400, "OFFSET_BEYOND_TAIL")
        for wrong in (at(4, 7), "7", "now", "-1", "x"):
            answer = await publish(world, wrong)
            assert (answer.status, answer.error) == (400, "INVALID_OFFSET"), wrong
        bad = await publish(world, offsets[4], b'{"n":')
        assert (bad.status, bad.error) == (400, "INVALID_JSON")
        digest = await publish(world, offsets[4], content_digest="sha-256=:AAAA:")
        assert digest.error == "DIGEST_MISMATCH"
        mismatch = await publish(world, offsets[4], stream_incarnation="99")
        assert (mismatch.status, mismatch.error) == (412, "INCARNATION_MISMATCH")
        missing = await world.ask("PUT", f"/v1/stream/none/snapshot/{at(0, 0)}", b"x")
        assert missing.error == "NOT_FOUND"
        assert (
            await publish(world, offsets[4], stream_snapshot_match="x")
        ).error == "NOT_SUPPORTED"
        trimmed = await world.ask("PUT", f"{URL}/retention/{offsets[2]}")
        assert trimmed.status == 204
        assert (await publish(world, offsets[1])).error == "TRIMMED"
        assert [each["offset"] for each in await listed(world)] == [offsets[3]]

    run(story)


async def listed(world: World, url: str = URL) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((await world.ask("GET", f"{url}/snapshots")).body)[
        "snapshots"
    ]
    return found


def test_a_byte_position_names_a_record_too() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        assert (await published(world, "6")).headers["stream-snapshot-offset"] == offsets[3]
        assert (await world.ask("GET", f"{URL}/snapshot/6")).status == 200
        assert (await published(world, "10")).headers["stream-snapshot-offset"] == offsets[5]

    run(story)


def test_an_empty_body_and_a_large_one_are_snapshots() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[1], b"", content_type="text/plain")
        assert (await world.ask("GET", f"{URL}/snapshot/{offsets[1]}")).body == b""
        large = bytes(range(256)) * 4096
        await published(world, offsets[2], large, content_type="application/octet-stream")
        found = await world.ask("GET", f"{URL}/snapshot/{offsets[2]}")
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
        offsets = await filled(world)
        plain = await world.ask("GET", f"{URL}/bootstrap")
        assert [body for _, body in parts_of(plain)] == [b"[0,1,2,3,4]"]
        await published(world, offsets[1], b'{"old":1}')
        await published(world, offsets[3], b'{"sum":3}')
        found = await world.ask("GET", f"{URL}/bootstrap")
        assert found.headers["stream-next-offset"] == offsets[5]
        assert found.headers["stream-up-to-date"] == "true"
        (first, snapshot), (second, tail) = parts_of(found)
        assert (first["content-type"], first["stream-snapshot-offset"]) == (JSON, offsets[3])
        assert (second["content-type"], second["stream-next-offset"]) == (JSON, offsets[5])
        assert (snapshot, tail) == (b'{"sum":3}', b"[3,4]")
        tag = found.headers["etag"]
        assert (await world.ask("GET", f"{URL}/bootstrap", if_none_match=tag)).status == 304
        envelope = await world.ask("GET", f"{URL}/bootstrap", accept=JSON)
        assert json.loads(envelope.body) == {
            "snapshot": {"sum": 3},
            "snapshot_offset": offsets[3],
            "records": [3, 4],
            "next_offset": offsets[5],
            "up_to_date": True,
        }
        await world.post(NAME, b"5")
        again = await world.ask("GET", f"{URL}/bootstrap", if_none_match=tag)
        assert (again.status, parts_of(again)[1][1]) == (200, b"[3,4,5]")

    run(story)


def test_each_bootstrap_has_a_boundary_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may hold the boundary of an earlier answer: the next one is another."""

    async def story(world: World) -> None:
        await world.put(NAME, content_type="text/plain")
        drawn = iter((bytes(16), bytes(range(16))))
        monkeypatch.setattr(bootstrap.secrets, "token_bytes", lambda size: next(drawn)[:size])
        first = await world.ask("GET", f"{URL}/bootstrap")
        assert first.headers["content-type"] == f"multipart/mixed; boundary=polynya-{'00' * 16}"
        record = f"\r\n--polynya-{'00' * 16}--\r\n".encode()
        assert (await world.post(NAME, record, content_type="text/plain")).status == 204
        second = await world.ask("GET", f"{URL}/bootstrap")
        boundary = "polynya-000102030405060708090a0b0c0d0e0f"
        assert second.headers["content-type"] == f"multipart/mixed; boundary={boundary}"
        assert (
            second.body
            == (
                f"--{boundary}\r\nContent-Type: text/plain\r\n"
                f"Stream-Next-Offset: {second.headers['stream-next-offset']}\r\n\r\n"
                f"\r\n--polynya-{'00' * 16}--\r\n\r\n--{boundary}--\r\n"
            ).encode()
        )

    run(story)


def test_the_etag_of_a_bootstrap_is_weak_where_the_boundary_differs() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[3], b'{"sum":3}')
        one, other = [await world.ask("GET", f"{URL}/bootstrap") for _ in range(2)]
        assert one.body != other.body and parts_of(one) == parts_of(other)
        assert one.headers["etag"] == other.headers["etag"]
        assert one.headers["etag"].startswith('W/"')
        one, other = [await world.ask("GET", f"{URL}/bootstrap", accept=JSON) for _ in range(2)]
        assert one.body == other.body
        assert one.headers["etag"] == other.headers["etag"]
        assert one.headers["etag"].startswith('"')
        for accept in ("*/*", JSON):
            tag = (await world.ask("GET", f"{URL}/bootstrap", accept=accept)).headers["etag"]
            again = await world.ask("GET", f"{URL}/bootstrap", accept=accept, if_none_match=tag)
            assert (again.status, again.headers["etag"]) == (304, tag)

    run(story)


def test_half_of_a_document_is_never_an_answer() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[2], b'{"sum":1}')
        assert (await world.ask("PUT", f"{URL}/retention/{offsets[3]}")).status == 204
        for query in ("", "?live=sse"):
            refused = await world.ask("GET", f"{URL}/bootstrap{query}")
            assert (refused.status, refused.error) == (410, "TRIMMED")
            assert refused.headers["stream-retained-offset"] == offsets[3]
        await published(world, offsets[4], b'{"sum":6}')
        assert parts_of(await world.ask("GET", f"{URL}/bootstrap"))[1][1] == b"[4]"

    run(story)


def test_a_live_bootstrap_goes_on_without_a_second_snapshot() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[3], b'{"sum":3}')
        wire = await world.wire()
        wire.send(request("GET", f"{URL}/bootstrap?live=sse"))
        assert (await wire.answer()).status == 200
        event = await wire.chunk()
        assert event.startswith(f"id:{offsets[3]}~".encode())
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
        offsets = await filled(world)
        await published(world, offsets[3])
        assert (await world.ask("DELETE", URL)).status == 204
        assert (await world.ask("GET", f"{URL}/snapshot/{offsets[3]}")).error == "NOT_FOUND"
        await filled(world)
        assert await listed(world) == []
        streams = [len(group.directory.streams) for group in world.service.local.machines.values()]
        assert sum(streams) == 1

    run(story)


def test_a_superseded_snapshot_can_be_read_for_its_grace() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        for number in (1, 2, 3):
            await published(world, offsets[number], b"%d" % number)
        assert [each["superseded"] for each in await listed(world)] == [True, False, False]
        target = f"{URL}/snapshot/{offsets[1]}"
        world.service.clock += SNAPSHOT_GRACE_MS - 1
        assert (await world.ask("GET", target)).body == b"1"
        world.service.clock += 1
        gone = await world.ask("GET", target)
        assert (gone.status, gone.error) == (410, "SNAPSHOT_GONE")
        assert gone.headers["stream-snapshot-offset"] == offsets[3]
        assert gone.headers["link"] == f'<{URL}/snapshot/{offsets[3]}>; rel="snapshot"'

    run(story)


def test_too_many_superseded_snapshots_are_refused_for_a_while() -> None:
    async def story(world: World) -> None:
        most = SNAPSHOTS_SUPERSEDED_MAX + 2
        offsets = await filled(world, most + 1)
        for number in range(1, most + 1):
            await published(world, offsets[number])
        soon = await publish(world, offsets[most + 1])
        assert (soon.status, soon.error) == (429, "SNAPSHOT_TOO_SOON")
        world.service.clock += int(soon.headers["retry-after"]) * 1000
        await published(world, offsets[most + 1])

    run(story)


def test_a_read_behind_the_trim_names_the_snapshot_to_begin_with() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await world.ask("PUT", f"{URL}/retention/{offsets[2]}")
        queries = (f"?offset={offsets[1]}", f"?offset={offsets[1]}&live=long-poll")
        queries += (f"?offset={offsets[1]}&live=sse",)
        for query in queries:
            answer = await world.get(NAME, query)
            assert (answer.status, "link" in answer.headers) == (410, False)
        await published(world, offsets[3])
        for query in queries:
            answer = await world.get(NAME, query)
            assert (answer.status, answer.error) == (410, "TRIMMED"), query
            assert answer.headers["stream-retained-offset"] == offsets[2]
            assert answer.headers["stream-snapshot-offset"] == offsets[3]
            assert answer.headers["link"] == f'<{URL}/snapshot/{offsets[3]}>; rel="snapshot"'

    run(story)


def test_a_read_may_begin_at_the_newest_snapshot() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        first = await world.get(NAME, "?offset=snapshot&live=long-poll")
        assert (first.status, first.headers["location"]) == (307, f"{URL}?offset=-1&live=long-poll")
        await published(world, offsets[3])
        then = await world.get(NAME, "?offset=snapshot")
        assert (then.status, then.headers["location"]) == (307, f"{URL}/snapshot/{offsets[3]}")
        await world.ask("PUT", f"{URL}/retention/{offsets[4]}")
        assert (await world.get(NAME, "?offset=snapshot")).error == "TRIMMED"

    run(story)


def test_a_retention_trims_to_the_oldest_snapshot_that_can_be_read() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world, 9)
        rule = b'{"snapshot":"any","snapshots_kept":3}'
        assert (await world.ask("PUT", f"{URL}/retention", rule)).status == 200
        shown = json.loads((await world.ask("GET", f"{URL}/retention")).body)
        assert (shown["snapshot"], shown["snapshots_kept"]) == ("any", 3)
        for number in (1, 3, 5, 7):
            await published(world, offsets[number], b"%d" % number)
            assert await first_kept(world) == offsets[1], "a superseded one can still be read"
        world.service.clock += SNAPSHOT_GRACE_MS
        await published(world, offsets[9], b"9")
        assert await first_kept(world) == offsets[3], "5, 7 and 9 are kept, 3 has its grace"

    run(story)


async def first_kept(world: World) -> str:
    found = json.loads((await world.ask("GET", f"{URL}/retention")).body)
    return str(found["retained_offset"])


def test_the_last_snapshot_that_covers_a_trim_stays() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        await published(world, offsets[2])
        await published(world, offsets[4], b"4")
        await world.ask("PUT", f"{URL}/retention/{offsets[2]}")
        assert (await world.ask("DELETE", f"{URL}/snapshot/{offsets[2]}")).status == 204
        needed = await world.ask("DELETE", f"{URL}/snapshot/{offsets[4]}")
        assert (needed.status, needed.error) == (409, "SNAPSHOT_NEEDED")

    run(story)


def test_a_sweep_removes_what_nobody_can_read() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        for number in (1, 2, 3):
            await published(world, offsets[number], b"%d" % number)
        assert await sweep_snapshots(world.service) == 0
        world.service.clock += SNAPSHOT_GRACE_MS + 1
        assert await sweep_snapshots(world.service) == 1
        assert [each["offset"] for each in await listed(world)] == offsets[2:4]
        owner = (await world.service.info(NAME), await world.service.info(companion_of(NAME)))
        assert [info.first_record for info in owner if isinstance(info, StreamInfo)] == [0, 1]
        assert await sweep_snapshots(world.service) == 0

    run(story)


def test_publishing_needs_append_and_snapshot_and_reading_needs_read(tmp_path: Path) -> None:
    async def story(world: World, gate: Gate) -> None:
        made = await world.ask("PUT", URL, **gate.bearer("writer"))
        target = f"{URL}/snapshot/{made.headers['stream-next-offset']}"
        for name, status in (("writer", 403), ("other", 403), ("publisher", 201), ("reader", 403)):
            answer = await world.ask("PUT", target, b"", **gate.bearer(name))
            assert answer.status == status, name
        for path in (target, f"{URL}/snapshots", f"{URL}/bootstrap"):
            assert (await world.ask("GET", path, **gate.bearer("reader"))).status == 200
            assert (await world.ask("GET", path, **gate.bearer("publisher"))).status == 403
            assert (await world.ask("GET", path)).status == 401
        assert (await world.ask("DELETE", target, **gate.bearer("writer"))).status == 403
        assert (await world.ask("DELETE", target, **gate.bearer("publisher"))).status == 204

    def setup(gate: Gate) -> None:
        gate.token("writer", "all:docs/")
        gate.token("other", "snapshot:docs/")
        gate.token("publisher", "append,snapshot:docs/")
        gate.token("reader", "read:docs/")

    guarded(tmp_path, story, setup=setup)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_older_cluster_refuses_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        monkeypatch.setattr(levels, "LEVEL", 3)
        answer = await world.ask(method, f"{URL}/snapshot/{offsets[1]}", b"1")
        assert (answer.status, answer.error) == (503, "UPGRADE_PENDING")

    run(story)


async def stage(world: World, offset: str, body: bytes) -> str:
    answer = await world.ask("POST", f"{URL}/snapshot/{offset}/parts", body)
    assert answer.status == 201, answer
    return answer.headers["stream-snapshot-part"]


async def commit(world: World, offset: str, parts: list[str], count: str = "") -> Answer:
    body = "\n".join(parts).encode()
    return await publish(
        world,
        offset,
        body,
        stream_snapshot_parts=count or str(len(parts)),
        content_type="text/plain",
    )


def test_a_body_may_come_in_parts() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        bodies = [bytes([number]) * (100_000 + number) for number in (1, 2, 3)]
        first = [await stage(world, offsets[3], body) for body in bodies[:2]]
        await stage(world, offsets[3], b"of another publisher")
        parts = [*first, await stage(world, offsets[3], bodies[2])]
        whole = b"".join(bodies)
        made = await commit(world, offsets[3], parts)
        assert made.status == 201, made
        digest = b64encode(hashlib.sha256(whole).digest()).decode()
        assert made.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert (await commit(world, offsets[3], parts)).status == 204
        target = f"{URL}/snapshot/{offsets[3]}"
        wire = await world.wire()
        wire.send(request("GET", target) + request("HEAD", URL))
        assert (await wire.answer()).body == whole
        assert (await wire.answer(method="HEAD")).status == 200, "the connection goes on"
        for begin, end in ((0, 1), (99_999, 100_003), (150_000, 250_000), (300_000, len(whole))):
            found = await world.ask("GET", target, range=f"bytes={begin}-{end - 1}")
            assert (found.status, found.body) == (206, whole[begin:end])
        assert parts_of(await world.ask("GET", f"{URL}/bootstrap"))[0][1] == whole

    run(story)


def test_parts_that_do_not_fit_are_refused() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        part = await stage(world, offsets[2], b"{")
        uid, record, byte, _ = part.split("-")
        for ids, count, code in (
            ([part], "2", "INVALID_HEADER"),
            ([], "0", "INVALID_HEADER"),
            ([part] * 65, "65", "INVALID_HEADER"),
            (["x"], "1", "INVALID_REQUEST"),
            ([f"{uid}-{record}-{byte}-2"], "1", "PARTS_GONE"),
            ([f"{int(uid) + 1}-{record}-{byte}-1"], "1", "PARTS_GONE"),
            ([f"{uid}-{int(record) + 1}-{byte}-1"], "1", "PARTS_GONE"),
            ([f"{uid}-{record}-{byte}-{1 << 30}"] * 2, "2", "BODY_TOO_LARGE"),
        ):
            assert (await commit(world, offsets[2], ids, count)).error == code, ids
        bad = await publish(world, offsets[2], part.encode(), stream_snapshot_parts="1")
        assert bad.error == "INVALID_JSON", "it may stand inside of an answer"
        assert (
            await world.ask("POST", f"{URL}/snapshot/{offsets[2]}/parts", b"")
        ).error == "EMPTY_BODY"
        assert (
            await world.ask("POST", f"{URL}/snapshot/{offsets[2]}/pieces", b"1")
        ).error == "NO_ROUTE"
        assert (await world.ask("GET", f"{URL}/snapshot/{offsets[2]}/a/b")).error == "NO_ROUTE"
        most = b"x" * (16 << 20)
        await stage(world, offsets[2], most)
        full = await world.ask("POST", f"{URL}/snapshot/{offsets[2]}/parts", most)
        assert (full.status, full.error) == (429, "SNAPSHOT_STAGED")

    run(story)


def test_a_bucket_trims_its_streams_to_their_snapshots() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        rule = Retention(record_time=SnapshotRule(trims=1, kept=2))
        await world.service.set_bucket("docs", rule)
        for number in (1, 2, 3):
            await published(world, offsets[number])
        world.service.clock += SNAPSHOT_GRACE_MS
        await sweep_snapshots(world.service)
        assert await first_kept(world) == offsets[2]

    run(story)


def test_a_read_of_a_snapshot_extends_a_sliding_ttl() -> None:
    async def story(world: World) -> None:
        created = await world.put(NAME, stream_ttl="60")
        target = f"{URL}/snapshot/{created.headers['stream-next-offset']}"
        assert (await world.ask("PUT", target, b"1")).status == 201
        for _ in range(3):
            world.service.clock += 40_000
            assert (await world.ask("GET", target)).status == 200
        world.service.clock += 61_000
        assert (await world.ask("GET", target)).error == "NOT_FOUND"

    run(story)


@pytest.mark.parametrize("style", ["ursula", "durable"])
def test_the_steps_of_the_benchmark_of_ursula(style: str) -> None:
    """Events of equal size, a snapshot in the middle at a byte position, then many bootstraps."""

    async def story(world: World) -> None:
        raw = {"content_type": "application/octet-stream"}
        url = "/bench-bootstrap/doc" if style == "ursula" else "/v1/stream/doc"
        if style == "ursula":
            assert (await world.ask("PUT", "/bench-bootstrap")).status == 201
        assert (await world.ask("PUT", url, **raw)).status == 201
        events = [bytes([number]) * 128 for number in range(10)]
        for event in events:
            assert (await world.ask("POST", url, event, **raw)).status == 204
        state = b"s" * 4096
        assert (await world.ask("PUT", f"{url}/snapshot/640", state, **raw)).status == 201
        found = parts_of(await world.ask("GET", f"{url}/bootstrap"))
        assert [body for _, body in found] == [state, b"".join(events[5:])]
        assert (await world.ask("GET", f"{url}?offset=-1")).body == b"".join(events)

    run(story)


def test_the_number_of_a_record_names_a_place() -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        for number in (2, 5):
            made = await world.ask("PUT", f"{URL}/snapshot?record={number}", b"%d" % number)
            assert (made.status, made.headers["stream-snapshot-offset"]) == (201, offsets[number])
            assert made.headers["location"].endswith(f"{URL}/snapshot/{offsets[number]}")
        beyond = await world.ask("PUT", f"{URL}/snapshot?record=6", b"6")
        assert beyond.error == "OFFSET_BEYOND_TAIL"
        for query in ("", "?record=x", "?record=-1"):
            answer = await world.ask("PUT", f"{URL}/snapshot{query}", b"1")
            assert answer.error == "INVALID_OFFSET", query
        origin = await publish(world, offsets[5], stream_snapshot_origin="r")
        assert origin.error == "INVALID_HEADER" and "Stream-Snapshot-Origin" in message(origin)

    run(story)


def test_a_body_that_goes_while_it_is_read_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        offsets = await filled(world)
        parts = [await stage(world, offsets[3], bytes([number]) * 1000) for number in (1, 2, 3)]
        assert (await commit(world, offsets[3], parts)).status == 201
        read = show.part_of

        async def lost(service: Any, info: Any, offset: tuple[int, int], **more: Any) -> Any:
            if offset[0] == 2:
                return Refusal(Code.TRIMMED)
            return await read(service, info, offset, **more)

        monkeypatch.setattr(show, "part_of", lost)
        wire = await world.wire()
        wire.send(request("GET", f"{URL}/snapshot/{offsets[3]}") + request("HEAD", URL))
        with pytest.raises(asyncio.IncompleteReadError) as broken:
            await wire.answer()
        assert broken.value.partial == b"\x01" * 1000 + b"\x02" * 1000

    run(story)
