"""Spellings of names, the list, NDJSON, incarnations, errors, CORS, what others mount."""

from __future__ import annotations

import asyncio
import json

import pytest
from front_world import World, play, request

from polynya.front.http.protocol.errors import ERRORS, REFUSALS, Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.stream.replies import Code


def test_both_spellings_and_the_plural_are_the_same_stream() -> None:
    async def story(world: World) -> None:
        assert (await world.ask("PUT", "/logs/a/b", content_type="application/json")).status == 201
        assert (await world.post("logs/a/b", b"[1,2]")).status == 204
        for path in (
            "/logs/a/b",
            "/v1/stream/logs/a/b",
            "/v1/streams/logs/a/b",
            "/v1/stream/logs/a/%62",
        ):
            assert (await world.ask("GET", path)).body == b"[1,2]"
        assert (await world.ask("GET", "/logs/a/b?offset=2")).body == b"[2]"  # a bare byte position
        assert (await world.get("logs/a/b", "?offset=2")).error == "INVALID_OFFSET"
        assert (await world.put("x")).status == 201
        assert (await world.head("default/x")).status == 200
        assert (await world.ask("HEAD", "/default/x")).status == 200
        assert (await world.put("snapshot")).status == 201
        assert (await world.head("default/snapshot")).status == 200

    play(story)


def test_a_put_of_what_is_there_is_answered_with_its_content_type() -> None:
    """Expect the stream's `Content-Type` in a 200, however the request spells it (the protocol,
    5.1)."""

    async def story(world: World) -> None:
        spelled = "Application/JSON; charset=utf-8"
        assert (await world.put("s", "application/json")).headers[
            "content-type"
        ] == "application/json"
        again = await world.put("s", spelled)
        assert (again.status, again.headers["content-type"]) == (200, "application/json")
        assert (await world.head("s")).headers["content-type"] == "application/json"
        assert (await world.put("f", stream_forked_from="/v1/stream/s")).status == 201
        again = await world.put("f", spelled, stream_forked_from="/v1/stream/s")
        assert (again.status, again.headers["content-type"]) == (200, "application/json")

    play(story)


def test_buckets_are_implicit() -> None:
    async def story(world: World) -> None:
        assert (await world.ask("PUT", "/my-bucket")).status == 201
        assert (await world.ask("PUT", "/UPPER")).error == "INVALID_NAME"
        assert (await world.ask("GET", "/my-bucket")).headers["allow"] == "PUT, OPTIONS"

    play(story)


def test_short_buckets_are_buckets_and_a_creation_says_which_one_it_was() -> None:
    async def story(world: World) -> None:
        for path, bucket in (
            ("/v1/stream/iot/a", "iot"),
            ("/e/b", "e"),
            ("/v1/stream/Iot/a", "default"),
            ("/v1/stream/x", "default"),
        ):
            created = await world.ask("PUT", path)
            assert (created.status, created.headers["stream-bucket"]) == (201, bucket)
            assert (await world.ask("PUT", path)).headers["stream-bucket"] == bucket, "it is there"
        assert (
            "stream-bucket"
            in (await world.ask("GET", "/e/b")).headers["access-control-expose-headers"]
        )
        listed = json.loads((await world.ask("GET", "/v1/streams")).body)["streams"]
        assert [each["name"] for each in listed] == ["Iot/a", "x", "e/b", "iot/a"], (
            "by bucket, then by name"
        )
        assert (await world.ask("HEAD", "/iot/a")).status == 200
        assert (await world.ask("PUT", "/v1/stream/fork", stream_forked_from="/iot/a")).headers[
            "stream-bucket"
        ] == "default"

    play(story)


@pytest.mark.parametrize(
    "path",
    [
        "a%2Fb",
        "a%00",
        "a//b",
        "a/../b",
        "./a",
        "a/",
        "",
        "_a",
        "v1",
        "default/v1",
        "default/_a",
        "logs/parts",
        "default/logs/parts",
        "default/x/$y",
        "x" * 1100,
        "%ff",
    ],
)
def test_illegal_names(path: str) -> None:
    async def story(world: World) -> None:
        answer = await world.put(path)
        assert answer.status == 400
        assert answer.error in ("INVALID_NAME", "BAD_TARGET")

    play(story)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/other", "/__ursula/metrics", "/favicon.ico", "/livez"]
)
def test_nothing_is_there(path: str) -> None:
    async def story(world: World) -> None:
        assert (await world.ask("GET", path)).error == "NO_ROUTE"

    play(story)


@pytest.mark.parametrize(
    "offset", ["", "abc", "1", "1,2", "1%2F2", "..", "%00", "%0d%0a", "-2", "1_", "1_2_3", "%20"]
)
def test_illegal_offsets(offset: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for live in ("", "&live=long-poll", "&live=sse"):
            assert (await world.get("s", f"?offset={offset}{live}")).error == "INVALID_OFFSET"
        assert (await world.get("s", "?offset=-1&offset=-1")).error == "BAD_TARGET"

    play(story)


def test_the_list_is_by_name_in_pages() -> None:
    async def story(world: World) -> None:
        for name in ("x", "xy", "y", "logs/1", "logs/2"):
            await world.put(name, stream_ttl="60")

        async def names(query: str) -> tuple[list[str], str | None]:
            found = json.loads((await world.ask("GET", f"/v1/streams{query}")).body)
            return [stream["name"] for stream in found["streams"]], found["next"]

        assert await names("") == (["x", "xy", "y", "logs/1", "logs/2"], None)
        assert await names("?prefix=x") == (["x", "xy"], None)
        assert await names("?prefix=logs/") == (["logs/1", "logs/2"], None)
        assert await names("?limit=2") == (["x", "xy"], "xy")
        assert await names("?limit=2&after=xy") == (["y", "logs/1"], "logs/1")
        assert (await world.ask("GET", "/v1/streams?limit=0")).error == "INVALID_PARAMETER"
        one = json.loads((await world.ask("GET", "/v1/streams?prefix=y")).body)["streams"][0]
        assert (one["ttl_seconds"], one["closed"], one["content_type"]) == (
            60,
            False,
            "application/json",
        )

    play(story)


def test_lines_for_those_who_accept_them() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b'[{"a":\n1},2]')
        plain = await world.get("s")
        lines = await world.get("s", accept="application/x-ndjson")
        assert (lines.body, lines.headers["content-type"], lines.headers["vary"]) == (
            b'{"a": 1}\n2\n',
            "application/x-ndjson",
            "Accept",
        )
        assert lines.headers["etag"] != plain.headers["etag"]

    play(story)


def test_the_incarnation_as_a_precondition() -> None:
    async def story(world: World) -> None:
        first = (await world.put("s")).headers["stream-incarnation"]
        assert (await world.post("s", b"1", stream_incarnation=first)).headers[
            "stream-incarnation"
        ] == first
        await world.ask("DELETE", "/v1/stream/s", stream_incarnation=first)
        second = (await world.put("s")).headers["stream-incarnation"]
        assert second != first
        for answer in (
            await world.post("s", b"1", stream_incarnation=first),
            await world.get("s", stream_incarnation=first),
            await world.get("s", "?offset=-1&live=long-poll", stream_incarnation=first),
            await world.get("s", "?offset=-1&live=sse", stream_incarnation=first),
            await world.ask("DELETE", "/v1/stream/s", stream_incarnation=first),
        ):
            assert (answer.status, answer.error, answer.headers["stream-incarnation"]) == (
                412,
                "INCARNATION_MISMATCH",
                second,
            )
        assert (await world.get("s", stream_incarnation="x")).error == "INVALID_HEADER"

    play(story)


def test_a_long_poll_of_another_life_does_not_wait() -> None:
    async def story(world: World) -> None:
        first = (await world.put("s")).headers["stream-incarnation"]
        await world.ask("DELETE", "/v1/stream/s")
        await world.put("s")
        async with asyncio.timeout(60):
            answer = await world.get(
                "s", "?offset=-1&live=long-poll&timeout_ms=60000", stream_incarnation=first
            )
        assert answer.error == "INCARNATION_MISMATCH"

    play(story)


def test_producers_errors_say_what_is_expected() -> None:
    async def story(world: World) -> None:
        await world.put("s")

        async def post(epoch: int, sequence: int) -> object:
            return await world.post(
                "s", b"1", producer_id="p", producer_epoch=str(epoch), producer_seq=str(sequence)
            )

        gap = await world.post("s", b"1", producer_id="p", producer_epoch="3", producer_seq="5")
        assert (
            gap.error,
            gap.headers["producer-expected-seq"],
            gap.headers["producer-received-seq"],
        ) == ("PRODUCER_GAP", "0", "5")
        await post(3, 0)
        stale = await world.post("s", b"1", producer_id="p", producer_epoch="2", producer_seq="1")
        assert (stale.status, stale.headers["producer-epoch"]) == (403, "3")
        assert (
            await world.post("s", b"1", producer_id="p", producer_epoch="4", producer_seq="1")
        ).error == "PRODUCER_EPOCH_START"
        assert (await world.post("s", b"1", producer_id="p")).error == "INVALID_HEADER"

    play(story)


def test_appends_that_are_none() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (await world.ask("POST", "/v1/stream/s", b"1")).error == "CONTENT_TYPE_REQUIRED"
        assert (await world.post("s", b"")).error == "EMPTY_BODY"
        assert (await world.post("s", b"[]")).error == "EMPTY_ARRAY"
        assert (await world.post("s", b"x", "text/plain")).error == "CONTENT_TYPE_MISMATCH"
        assert (await world.post("none", b"1")).error == "NOT_FOUND"
        assert (await world.post("s", b"[" * 200_000)).error == "INVALID_JSON"
        assert (await world.post("s", b"[" + b"1," * 1_000_000 + b"1]")).error == "TOO_MANY_RECORDS"
        closed = await world.ask("POST", "/v1/stream/s", stream_closed="true")
        late = await world.post("s", b"1")
        assert (late.error, late.headers["stream-closed"]) == ("STREAM_CLOSED", "true")
        assert late.headers["stream-next-offset"] == closed.headers["stream-next-offset"]

    play(story)


def test_forks_over_http() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        first = (await world.post("s", b"1")).headers["stream-next-offset"]
        await world.post("s", b"2")
        made = await world.ask(
            "PUT", "/v1/stream/f", stream_forked_from="/v1/stream/s", stream_fork_offset=first
        )
        assert (made.status, made.headers["content-type"], made.headers["stream-next-offset"]) == (
            201,
            "application/json",
            first,
        )
        await world.post("f", b"3")
        assert (await world.get("f")).body == b"[1,3]"
        assert (await world.ask("DELETE", "/v1/stream/s")).status == 204
        assert (await world.get("s")).error == "GONE"
        assert (await world.put("s")).error == "DELETED_IN_USE"
        for headers in (
            {"stream_fork_offset": first},
            {"stream_fork_sub_offset": "0"},
            {"stream_forked_from": "s"},
            {"stream_forked_from": "/v1/stream/a%2Fb"},
            {"stream_forked_from": "/v1/stream/f", "stream_fork_offset": "x"},
            {"stream_forked_from": "/v1/stream/f", "stream_fork_sub_offset": "1"},
            {
                "stream_forked_from": "/v1/stream/f",
                "stream_fork_offset": first,
                "stream_fork_sub_offset": "01",
            },
        ):
            assert (await world.ask("PUT", "/v1/stream/g", **headers)).error == "INVALID_HEADER"
        assert (
            await world.ask("PUT", "/v1/stream/g", stream_forked_from="/v1/stream/none")
        ).error == "NOT_FOUND"

    play(story)


def test_a_fork_with_a_body_takes_the_type_of_its_source() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"[1,2]")
        made = await world.ask("PUT", "/v1/stream/f", b"[3,4]", stream_forked_from="/v1/stream/s")
        assert made.status == 201
        assert (await world.get("f")).body == b"[1,2,3,4]"

    play(story)


def test_locations_name_the_host_that_was_asked() -> None:
    async def story(world: World) -> None:
        assert (await world.put("a%20b")).headers["location"] == "http://test/v1/stream/a%20b"
        assert (await world.put("c", x_forwarded_proto="https")).headers[
            "location"
        ] == "https://test/v1/stream/c"

    play(story)


def test_cors_and_methods() -> None:
    async def story(world: World) -> None:
        for path in ("/v1/stream/s", "/nowhere/", "/v1/streams"):
            preflight = await world.ask("OPTIONS", path, origin="http://page")
            assert preflight.status == 204
            assert "if-none-match" in preflight.headers["access-control-allow-headers"]
            assert "last-event-id" in preflight.headers["access-control-allow-headers"]
        await world.put("s")
        assert "access-control-allow-origin" not in (await world.post("s", b"1")).headers
        assert (await world.post("s", b"1", origin="http://page")).headers[
            "access-control-allow-origin"
        ] == "*"
        assert (await world.get("s")).headers["access-control-expose-headers"]
        patch = await world.ask("PATCH", "/v1/stream/s")
        assert (patch.error, patch.headers["allow"]) == (
            "METHOD_NOT_ALLOWED",
            "POST, GET, HEAD, PUT, DELETE, OPTIONS",
        )

    play(story)


def test_what_others_hang_into_the_front() -> None:
    async def echo(asked: Request) -> Response:
        if asked.segments == ("fail",):
            raise Failure("INVALID_REQUEST", "as told")
        if asked.segments == ("break",):
            raise RuntimeError("broken")
        shown = [
            asked.method,
            asked.path,
            list(asked.segments),
            asked.query,
            asked.body.decode(),
            asked.base_url,
        ]
        return Response(202, json.dumps(shown).encode(), headers=(("X-More", "1"),))

    async def health(asked: Request) -> Response:
        return Response(body=b"ok\n", content_type="text/plain")

    async def story(world: World) -> None:
        answer = await world.ask("POST", "/v1/stream/__ds/a%2Fb/c?limit=1&q=1", b"body")
        assert (answer.status, answer.headers["x-more"]) == (202, "1")
        assert json.loads(answer.body) == [
            "POST",
            "/v1/stream/__ds/a%2Fb/c",
            ["a/b", "c"],
            {"limit": "1"},  # not q, which its routes do not take
            "body",
            "http://test",
        ]
        assert (await world.ask("GET", "/v1/stream/__ds/fail")).error == "INVALID_REQUEST"
        assert (await world.ask("GET", "/v1/stream/__ds/break")).error == "INTERNAL"
        assert (await world.ask("GET", "/livez")).body == b"ok\n"
        assert (await world.ask("HEAD", "/livez")).body == b""
        wire = await world.wire()
        wire.send(request("GET", "/livez?verbose") * 3)
        assert [(await wire.answer()).body for _ in range(3)] == [b"ok\n"] * 3

    play(story, handlers={"/livez": health}, mounts={"/v1/stream/__ds/": echo})


def test_a_port_without_streams() -> None:
    from polynya.front.http.protocol.router import Router

    for path in ("/v1/stream/s", "/logs/s", "/v1/streams", "/logs"):
        with pytest.raises(Failure) as failed:
            Router({}, {}, streams=False).resolve(path)
        assert failed.value.code == "NO_ROUTE"
        assert "admin port" in failed.value.message and "'listen'" in failed.value.message


def test_every_refusal_has_a_code_and_every_code_a_meaning() -> None:
    elsewhere = {
        Code.ACTIVE,
        Code.BACKUP_HOLDS,
        Code.DUPLICATE_SEQUENCE,
        Code.FENCED,
        Code.HELD,
        Code.TOO_MANY,
        Code.REFUSED,
        Code.NONE_APPENDED,  # and of many appends: answered as the refused one
        Code.TXN_CONCURRENT,
        Code.TXN_ENDED,
        Code.TXN_HELD,
        Code.TXN_LATE,
        Code.TXN_STATE,
    }  # internal, and answered by subscriptions, by the cluster and to Kafka
    assert {code for code in Code if code >= Code.NOT_FOUND} - elsewhere == set(REFUSALS)
    assert set(REFUSALS.values()) <= set(ERRORS)
    assert all(
        error.message and error.outcome in ("refused", "unknown") for error in ERRORS.values()
    )


def test_reads_extend_a_sliding_ttl_and_head_does_not() -> None:
    async def story(world: World) -> None:
        await world.put("s", stream_ttl="10")
        for _ in range(3):
            world.service.clock += 8_000
            assert (await world.get("s", "?offset=now")).status == 200
        world.service.clock += 8_000
        assert (await world.head("s")).headers["stream-ttl"] == "10"
        world.service.clock += 3_000
        assert (await world.head("s")).status == 404

    play(story)


def test_errors_of_mounts_have_the_one_shape() -> None:
    async def refuse(request: Request) -> Response:
        return Response(409, b'{"error":{"code":"FENCED","generation":3}}')

    async def story(world: World) -> None:
        answer = await world.ask("POST", "/v1/stream/__ds/x", b"{}")
        assert json.loads(answer.body) == {
            "error": {
                "code": "FENCED",
                "generation": 3,
                "message": "",
                "request_id": answer.headers["x-request-id"],
            }
        }
        assert answer.headers["stream-outcome"] == "refused"

    play(story, mounts={"/v1/stream/__ds/": refuse})


@pytest.mark.parametrize(
    ("content_type", "policy"),
    [
        ("text/html", "sandbox"),
        ("TEXT/HTML; charset=utf-8", "sandbox"),
        ("image/svg+xml", "sandbox"),
        ("application/xml", "sandbox"),
        ("text/plain", None),
        ("application/octet-stream", None),
        ("application/json", None),
    ],
)
def test_what_a_browser_might_run_is_no_page_of_this_origin(
    content_type: str, policy: str | None
) -> None:
    async def story(world: World) -> None:
        await world.put("s", content_type)
        await world.post("s", b"1", content_type)
        for query in ("", "?offset=-1&live=long-poll", "?offset=now"):
            assert (await world.get("s", query)).headers.get("content-security-policy") == policy

    play(story)
