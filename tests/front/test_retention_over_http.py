"""Retention, trims and reads by time as clients see them."""

from __future__ import annotations

import json

import pytest
from front_world import World, play

from polynya.front.http.api.buckets import PATH, BucketRoutes
from polynya.front.http.protocol.extension import Handler


def token(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


async def fill(world: World, name: str = "docs/a", records: int = 6, **headers: str) -> None:
    assert (await world.put(name, **headers)).status == 201
    for number in range(records):
        world.service.clock += 1000
        assert (await world.post(name, b"%d" % number)).status in (200, 204)


def test_what_is_trimmed_is_gone_and_the_answer_names_the_first_kept_offset() -> None:
    async def story(world: World) -> None:
        await fill(world)
        url = "/v1/stream/docs/a/retention"
        done = await world.ask("POST", url, json.dumps({"before": token(4, 8)}).encode())
        assert (done.status, json.loads(done.body)) == (
            200,
            {"retained_offset": token(4, 8), "records": 4, "bytes": 8},
        )
        assert done.headers["stream-retained-offset"] == token(4, 8)
        for query in ("", "&live=long-poll", "&live=sse"):
            gone = await world.get("docs/a", f"?offset={token(1, 2)}{query}")
            assert (gone.status, gone.error) == (410, "TRIMMED")
            assert gone.headers["stream-retained-offset"] == token(4, 8)
            assert token(4, 8) in json.loads(gone.body)["error"]["message"]
        assert (await world.get("docs/a", "?offset=-1")).body == b"[4,5]"
        assert (await world.get("docs/a")).body == b"[4,5]"
        assert (await world.head("docs/a")).headers["stream-retained-offset"] == token(4, 8)
        assert (await world.ask("PUT", f"{url}/{token(5, 0)}")).status == 204
        again = await world.ask("PUT", f"{url}/{token(2, 0)}")
        assert (again.status, again.headers["stream-retained-offset"]) == (204, token(5, 10))
        fork = await world.put(
            "docs/f",
            stream_forked_from="/v1/stream/docs/a",
            stream_fork_offset=token(2, 4),
            content_type="application/json",
        )
        assert (fork.status, fork.error, fork.headers["stream-retained-offset"]) == (
            410,
            "TRIMMED",
            token(5, 10),
        )
        assert (await world.ask("PUT", "/docs/a/retention/12")).status == 204, (
            "a byte position, on Ursula's spelling"
        )
        assert (await world.get("docs/a")).body == b"[]"

    play(story)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "INVALID_REQUEST"),
        (b"{}", "INVALID_REQUEST"),
        (b'{"before": "x"}', "INVALID_OFFSET"),
        (b'{"before": "12"}', "INVALID_OFFSET"),
        (b'{"before": "now", "keep_bytes": 1}', "INVALID_REQUEST"),
        (b'{"keep_bytes": -1}', "INVALID_REQUEST"),
        (b'{"keep_bites": 1}', "INVALID_REQUEST"),
        (b'{"before_time": "yesterday"}', "INVALID_REQUEST"),
        (json.dumps({"before": token(7, 0)}).encode(), "OFFSET_BEYOND_TAIL"),
    ],
)
def test_a_trim_that_cannot_be_is_refused(body: bytes, code: str) -> None:
    async def story(world: World) -> None:
        await fill(world)
        refused = await world.ask("POST", "/v1/stream/docs/a/retention", body)
        assert (refused.status, refused.error) == (400, code)
        assert (await world.get("docs/a")).body == b"[0,1,2,3,4,5]"

    play(story)


def test_trims_by_time_and_size() -> None:
    async def story(world: World) -> None:
        await fill(world)
        url = "/v1/stream/docs/a/retention"
        for body, first in (
            ({"keep_bytes": 8}, 2),
            ({"keep_age_seconds": 2}, 3),
            ({"before_time": "1s"}, 4),
            ({"keep_bytes": 0}, 6),
        ):
            done = await world.ask("POST", url, json.dumps(body).encode())
            assert json.loads(done.body)["retained_offset"] == token(first, 2 * first), body
        assert (
            await world.ask("POST", url, b'{"keep_bytes": 0}', stream_incarnation="7")
        ).error == "INCARNATION_MISMATCH"
        assert (
            await world.ask("POST", "/v1/stream/docs/none/retention", b'{"keep_bytes": 0}')
        ).error == "NOT_FOUND"
        assert (await world.ask("PATCH", url, b"{}")).error == "METHOD_NOT_ALLOWED"
        assert (await world.ask("POST", f"{url}/5", b'{"keep_bytes": 0}')).error == "NO_ROUTE"

    play(story)


def test_retention_is_set_at_creation_and_later() -> None:
    async def story(world: World) -> None:
        assert (
            await world.put("docs/a", stream_retention_age="3600", stream_retention_bytes="forever")
        ).status == 201
        assert (await world.put("docs/a", stream_retention_age="3600")).status == 200
        assert (await world.put("docs/a")).status == 200, "none is named"
        assert (await world.put("docs/a", stream_retention_age="7")).error == "EXISTS_DIFFERENT"
        head = await world.head("docs/a")
        assert (head.headers["stream-retention-age"], head.headers["stream-retention-bytes"]) == (
            "3600",
            "forever",
        )
        url = "/v1/stream/docs/a/retention"
        found = json.loads((await world.ask("GET", url)).body)
        assert found == {
            "age_seconds": 3600, "bytes": None, "from": "stream", "retained_offset": token(0, 0), "next_offset": token(0, 0)
        }  # fmt: skip
        put = await world.ask("PUT", url, b'{"bytes": 1000}')
        assert json.loads(put.body) == {"age_seconds": None, "bytes": 1000, "from": "stream"}
        put = await world.ask("PUT", url, b'{"age_seconds": 9, "record_time": true}')
        assert json.loads(put.body) == {
            "age_seconds": 9, "bytes": None, "record_time": True, "from": "stream"
        }  # fmt: skip
        assert json.loads((await world.ask("GET", url)).body)["record_time"] is True
        assert (await world.ask("PUT", url, b'{"bytes": "1000"}')).error == "INVALID_REQUEST"
        assert (await world.ask("DELETE", url)).status == 204
        assert json.loads((await world.ask("GET", url)).body)["from"] is None
        assert "stream-retention-age" not in (await world.head("docs/a")).headers
        assert (await world.ask("GET", "/v1/stream/docs/none/retention")).error == "NOT_FOUND"
        for bad in ("-1", "1.5", "07", "x", "1" * 21):
            assert (await world.put("docs/b", stream_retention_bytes=bad)).error == "INVALID_HEADER"

    play(story)


def test_a_bucket_has_a_retention() -> None:
    async def story(world: World) -> None:
        routes = BucketRoutes(world.service)
        handlers[PATH], mounts[PATH + "/"] = routes.list, routes.handle
        world.front.context.router._handlers.update(handlers)
        world.front.context.router._mounts += list(mounts.items())
        await fill(world)
        url = f"{PATH}/docs/retention"
        assert (
            json.loads((await world.ask("PUT", url, b'{"age_seconds": 60}')).body)["from"]
            == "bucket"
        )
        assert json.loads((await world.ask("GET", PATH)).body) == {
            "buckets": [
                {
                    "name": "docs",
                    "retention": {"age_seconds": 60, "bytes": None},
                }
            ]
        }
        of_stream = json.loads((await world.ask("GET", "/v1/stream/docs/a/retention")).body)
        assert (of_stream["age_seconds"], of_stream["from"]) == (60, "bucket")
        assert (await world.ask("DELETE", url)).status == 204
        assert json.loads((await world.ask("GET", url)).body) == {
            "age_seconds": None,
            "bytes": None,
            "from": None,
        }
        assert (await world.ask("PUT", f"{PATH}/X/retention", b"{}")).error == "INVALID_NAME"
        assert (await world.ask("PUT", f"{PATH}/docs/other", b"{}")).error == "NO_ROUTE"
        assert (await world.ask("POST", PATH, b"{}")).error == "METHOD_NOT_ALLOWED"

    handlers: dict[str, Handler] = {}
    mounts: dict[str, Handler] = {}
    play(story)


def test_the_word_retention_is_a_stream_where_it_is_no_part_of_one() -> None:
    async def story(world: World) -> None:
        assert (await world.put("retention")).status == 201
        assert (await world.post("retention", b"1")).status == 204
        assert (await world.get("retention")).body == b"[1]"
        assert (await world.put("retention/of")).status == 201
        assert (await world.put("docs/retentions")).status == 201
        assert (await world.ask("GET", "/docs/retention")).error == "INVALID_NAME"
        assert (await world.ask("GET", "/retention")).status in (400, 404, 405)
        assert (await world.ask("GET", "/v1/stream/retention/retention")).status == 200

    play(story)


def test_a_read_begins_at_a_time() -> None:
    async def story(world: World) -> None:
        await fill(world)
        began = world.service.clock - 5000
        for ask, expected in (
            (str(began), b"[0,1,2,3,4,5]"),
            (str(began + 1), b"[1,2,3,4,5]"),
            ("2s", b"[3,4,5]"),
            ("1999ms", b"[4,5]"),
            ("0s", b"[5]"),
            (str(began + 9000), b"[]"),
        ):
            page = await world.get("docs/a", f"?from_time={ask}")
            assert (page.status, page.body) == (200, expected), ask
            assert page.headers["cache-control"] == "no-cache"
            assert page.headers["stream-next-offset"] == token(6, 12)
        assert (await world.get("docs/a", "?from_time=2s&max_bytes=2")).headers[
            "stream-next-offset"
        ] == token(4, 8)
        assert (await world.get("docs/a", "?from_time=2s&live=long-poll")).body == b"[3,4,5]"
        kept = await world.get("docs/a", "?from_time=2s", if_none_match=page.headers["etag"])
        assert kept.status == 200
        assert (
            await world.get("docs/a", "?from_time=0s", if_none_match=page.headers["etag"])
        ).status == 200
        for bad in ("?from_time=x", "?from_time=", "?from_time=1s&offset=-1"):
            assert (await world.get("docs/a", bad)).error == "INVALID_PARAMETER"
        waiting = world.meanwhile(
            world.get(
                "docs/a", f"?from_time={world.service.clock + 1}&live=long-poll&timeout_ms=5000"
            )
        )
        await world.until(lambda: world.front.readers.waiters)
        await world.post("docs/a", b"6")
        assert (await waiting).body == b"[6]"
        wire = await world.sse("docs/a", "?live=sse&from_time=1s")
        assert b"data:[4,5,6]" in await wire.chunk()

    play(story)


def test_a_reader_that_is_overtaken_by_a_trim_while_it_catches_up_is_told() -> None:
    async def story(world: World) -> None:
        await fill(world, records=0)
        for _ in range(60):  # more than the sockets between them hold
            await world.post("docs/a", b'"%s"' % (b"x" * 500_000))
        wire = await world.sse("docs/a")
        assert (
            await world.ask("POST", "/v1/stream/docs/a/retention", b'{"keep_bytes": 0}')
        ).status == 200
        said = b""
        while piece := await wire.chunk():
            said = (said + piece)[-2000:]
        assert (b"event: error" in said and b'"TRIMMED"' in said) or said.count(b"upToDate")

    play(story)


def test_a_stream_keeps_the_newest_record_of_each_key_by_its_retention() -> None:
    async def story(world: World) -> None:
        await fill(world)
        url = "/v1/stream/docs/a/retention"
        before = (await world.get("docs/a", "?offset=-1")).headers["etag"]
        put = await world.ask("PUT", url, b'{"age_seconds": 60, "compact": true}')
        expected = {"age_seconds": 60, "bytes": None, "compact": True, "from": "stream"}
        assert (put.status, json.loads(put.body)) == (200, expected)
        assert json.loads((await world.ask("GET", url)).body)["compact"] is True
        assert (await world.get("docs/a", "?offset=-1")).headers["etag"] == before
        put = await world.ask("PUT", url, b'{"age_seconds": 60}')
        assert "compact" not in json.loads(put.body)
        assert "compact" not in json.loads((await world.ask("GET", url)).body)
        await world.ask("PUT", url, b'{"compact": true}')
        assert (await world.ask("DELETE", url)).status == 204
        assert "compact" not in json.loads((await world.ask("GET", url)).body)
        other = await world.ask("PUT", url, b'{"compact": true}', stream_incarnation="1")
        assert other.status == 412
        assert (await world.ask("PUT", url, b'{"compact": 1}')).status == 400
        assert (
            await world.ask("PUT", "/v1/stream/no/retention", b'{"compact": true}')
        ).status == 404

    play(story)
