"""Error messages that name the received value, the expected one and the remedy."""

from __future__ import annotations

import json

import pytest
from front_world import Answer, World, play, request


def message(answer: Answer) -> str:
    assert answer.error
    return str(json.loads(answer.body)["error"]["message"])


def test_a_wrong_content_type_names_both() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        refused = await world.post("docs/a", b"x", "text/plain; charset=utf-8")
        assert refused.error == "CONTENT_TYPE_MISMATCH"
        assert message(refused) == (
            "the stream holds application/json, and the request's Content-Type is text/plain; "
            "charset=utf-8: send application/json, "
            "or append to another stream"
        )
        fork = {"content_type": "text/plain", "stream_forked_from": "/v1/stream/docs/a"}
        assert "holds application/json, and the request's Content-Type is text/plain" in message(
            await world.ask("PUT", "/v1/stream/docs/f", **fork)
        )

    play(story)


LIFE = "2030-01-31T12:00:00Z"
LATER = "2031-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("made", "asked", "said"),
    [
        ({}, {"content_type": "text/plain"}, "its Content-Type is application/json, and the request's is text/plain"),
        ({}, {"content_type": ""}, "its Content-Type is application/json, and the request's is application/octet-stream"),
        ({"stream_ttl": "60"}, {"stream_ttl": "30"}, "its Stream-TTL is 60, and the request's is 30"),
        ({"stream_ttl": "60"}, {}, "its Stream-TTL is 60, and the request's is not set"),
        ({}, {"stream_ttl": "30"}, "its Stream-TTL is not set, and the request's is 30"),
        ({"stream_expires_at": LIFE}, {"stream_expires_at": LATER}, f"its Stream-Expires-At is {LIFE}, and the request's is {LATER}"),
        ({}, {"stream_closed": "true"}, "its Stream-Closed is false, and the request's is true"),
        ({"stream_retention_age": "7"}, {"stream_retention_age": "8"}, "its Stream-Retention-Age is 7, and the request's is 8"),
        ({"stream_retention_age": "7"}, {"stream_retention_bytes": "9"},
         "its Stream-Retention-Age is 7, and the request's is forever; its Stream-Retention-Bytes "
         "is forever, and the request's is 9"),
        ({}, {"stream_retention_age": "8"}, "it has no retention of its own, and the request gives it one"),
        ({}, {"stream_forked_from": "/v1/stream/docs/source"}, "it is not a fork"),
        ({"stream_forked_from": "/v1/stream/docs/source"}, {}, "it is a fork, and the request has no Stream-Forked-From"),
        ({"stream_forked_from": "/v1/stream/docs/source"}, {"stream_forked_from": "/v1/stream/docs/other"},
         "it is a fork of another stream than Stream-Forked-From names"),
        ({"stream_forked_from": "/v1/stream/docs/source", "stream_fork_offset": "-1"},
         {"stream_forked_from": "/v1/stream/docs/source", "stream_fork_offset": "0000000000000001_0000000000000002"},
         "its Stream-Fork-Offset is 0000000000000000_0000000000000000, and the request's is "
         "0000000000000001_0000000000000002"),
        ({"stream_ttl": "60"}, {"content_type": "text/plain", "stream_ttl": "30"},
         "its Content-Type is application/json, and the request's is text/plain; its Stream-TTL "
         "is 60, and the request's is 30"),
    ],
)  # fmt: skip
def test_a_stream_that_exists_otherwise_names_what_differs(
    made: dict[str, str], asked: dict[str, str], said: str
) -> None:
    async def story(world: World) -> None:
        for name in ("docs/source", "docs/other"):
            await world.put(name)
            await world.post(name, b"[1]")
        kind = {"content_type": "application/json"}
        assert (await world.ask("PUT", "/v1/stream/docs/a", **(kind | made))).status == 201
        refused = await world.ask("PUT", "/v1/stream/docs/a", **(kind | asked))
        assert (refused.status, refused.error) == (409, "EXISTS_DIFFERENT")
        whole = (
            f"the stream exists with another configuration: {said}. Send the same configuration, "
            "or choose another name"
        )
        assert message(refused) == whole

    play(story)


def test_what_a_request_says_is_cut_in_the_message() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a", stream_closed="true")
        said = message(await world.put("docs/a", stream_closed="x" * 8000))
        assert "its Stream-Closed is true, and the request's is xxx" in said and len(said) < 600

    play(story)


AT = "0000000000000000_0000000000000000"
BEYOND = "0000000000000009_0000000000000009"
JSON = {"content_type": "application/json"}


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "said"),
    [
        ("POST", "/v1/stream/ordres", JSON, b"1", "there is no stream 'ordres'; a PUT to its URL creates it"),
        ("GET", "/v1/stream/a/b", {}, None, "there is no stream 'a/b'; a PUT to its URL creates it"),
        ("GET", "/v1/stream/a/b?live=sse&offset=-1", {}, None, "there is no stream 'a/b'; a PUT to its URL creates it"),
        ("DELETE", "/v1/stream/a/b", {}, None, "there is no stream 'a/b'"),
        ("GET", "/stream/orders", {}, None,
         "there is no stream 'stream/orders'; a PUT to its URL creates it (a path outside /v1 is "
         "read as BUCKET/STREAM)"),
        ("PUT", "/v1/stream/f", {"stream_forked_from": "/v1/stream/none"}, None,
         "there is no stream at /v1/stream/none, which Stream-Forked-From names"),
        ("PUT", "/v1/stream/f", JSON | {"stream_forked_from": "/v1/stream/none"}, None,
         "there is no stream at /v1/stream/none, which Stream-Forked-From names"),
        ("GET", "/orders", {}, None, (
            "GET is not allowed at this path, which allows PUT, OPTIONS; it names a bucket, and a "
            "stream is at /v1/stream/NAME"
        )),
        ("PATCH", "/v1/stream/orders", {}, None, "PATCH is not allowed at this path, which allows POST, GET, HEAD, PUT, DELETE, OPTIONS"),
        ("GET", "/v1/orders", {}, None, "no route matches this path; streams are at /v1/stream/NAME"),
        ("GET", "/v1/stream/orders?offset=5", {}, None, "'5' is not a valid offset: it must be -1, now, or an offset returned by this server"),
        ("GET", f"/v1/stream/orders?offset={BEYOND}", {}, None,
         f"the offset lies beyond the tail of the stream, which is at {AT}: read from there, or "
         "from -1"),
        ("GET", "/v1/stream/orders?live=yes", {}, None, "live must be long-poll or sse, not 'yes'"),
        ("GET", "/v1/stream/orders?max_bytes=-5", {}, None, "max_bytes must be a whole number above 0, not '-5'"),
        ("POST", "/v1/stream/orders", JSON, b"", "the body is empty: an append needs one, or Stream-Closed: true to close the stream"),
        ("POST", "/v1/stream/orders", JSON, b"[]", "an empty JSON array appends nothing; [[]] appends one as a record"),
        ("POST", "/v1/stream/orders", {}, b"1", "an append needs the stream's Content-Type, such as application/json"),
        ("POST", "/v1/stream/orders", {"content_type": "application/x-www-form-urlencoded"}, b"1",
         "the stream holds application/json, and the request's Content-Type is "
         "application/x-www-form-urlencoded: send application/json, "
         "or append to another stream (it is curl's own choice: give it -H 'Content-Type: "
         "application/json')"),
        ("POST", "/v1/stream/orders", JSON | {"producer_id": "p", "producer_epoch": "0", "producer_seq": "7"}, b"1",
         "Producer-Seq is 7, and the next one of this producer is 0"),
        ("PUT", "/v1/stream/x", {"stream_ttl": "soon"}, None,
         "Stream-TTL must be a whole number of seconds, without sign, fraction or leading zeros, "
         "not 'soon'"),
        ("PUT", "/v1/stream/x", {"stream_expires_at": "tomorrow"}, None,
         "Stream-Expires-At must be an RFC 3339 time with zone, such as 2030-01-31T12:00:00Z, not "
         "'tomorrow'"),
    ],
)  # fmt: skip
def test_the_first_errors_say_what_came_and_what_to_do(
    method: str, target: str, headers: dict[str, str], body: bytes | None, said: str
) -> None:
    async def story(world: World) -> None:
        await world.put("orders")
        assert message(await world.ask(method, target, body, **headers)) == said

    play(story)


def test_a_producer_is_told_its_next_number_also_on_a_connection_that_repeats_its_requests() -> (
    None
):
    """The second append of a shape takes the fast way, which keeps the head of the first."""

    async def story(world: World) -> None:
        await world.put("orders")
        wire = await world.wire()
        for number, status in (("0", 200), ("1", 200), ("2", 200), ("9", 409)):
            wire.send(
                request(
                    "POST",
                    "/v1/stream/orders",
                    b"1",
                    **JSON,
                    producer_id="p",
                    producer_epoch="3",
                    producer_seq=number,
                )
            )
            answer = await wire.answer()
            assert answer.status == status
        assert message(answer) == "Producer-Seq is 9, and the next one of this producer is 3"
        wire.send(
            request(
                "POST",
                "/v1/stream/orders",
                b"1",
                **JSON,
                producer_id="p",
                producer_epoch="2",
                producer_seq="4",
            )
        )
        assert (
            message(await wire.answer())
            == "a newer Producer-Epoch is known, 3: another run of this producer has taken over"
        )

    play(story)
