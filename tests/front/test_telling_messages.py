"""Errors that say what came, what was expected and what to do: the message of each names both."""

from __future__ import annotations

import json

import pytest
from front_world import Answer, World, play


def message(answer: Answer) -> str:
    assert answer.error
    return str(json.loads(answer.body)["error"]["message"])


def test_a_wrong_content_type_names_both() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        refused = await world.post("docs/a", b"x", "text/plain; charset=utf-8")
        assert refused.error == "CONTENT_TYPE_MISMATCH"
        assert message(refused) == (
            "the stream holds application/json, and the request's Content-Type is text/plain; charset=utf-8: send application/json, "
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
         "its Stream-Retention-Age is 7, and the request's is forever; its Stream-Retention-Bytes is forever, and the request's is 9"),
        ({}, {"stream_retention_age": "8"}, "it has no retention of its own, and the request gives it one"),
        ({}, {"stream_forked_from": "/v1/stream/docs/source"}, "it is no fork"),
        ({"stream_forked_from": "/v1/stream/docs/source"}, {}, "it is a fork, and the request has no Stream-Forked-From"),
        ({"stream_forked_from": "/v1/stream/docs/source"}, {"stream_forked_from": "/v1/stream/docs/other"},
         "it is a fork of another stream than Stream-Forked-From names"),
        ({"stream_forked_from": "/v1/stream/docs/source", "stream_fork_offset": "-1"},
         {"stream_forked_from": "/v1/stream/docs/source", "stream_fork_offset": "0000000000000001_0000000000000002"},
         "its Stream-Fork-Offset is 0000000000000000_0000000000000000, and the request's is 0000000000000001_0000000000000002"),
        ({"stream_ttl": "60"}, {"content_type": "text/plain", "stream_ttl": "30"},
         "its Content-Type is application/json, and the request's is text/plain; its Stream-TTL is 60, and the request's is 30"),
    ],
)  # fmt: skip
def test_a_stream_that_exists_otherwise_names_what_differs(made: dict[str, str], asked: dict[str, str], said: str) -> None:
    async def story(world: World) -> None:
        for name in ("docs/source", "docs/other"):
            await world.put(name)
            await world.post(name, b"[1]")
        kind = {"content_type": "application/json"}
        assert (await world.ask("PUT", "/v1/stream/docs/a", **(kind | made))).status == 201
        refused = await world.ask("PUT", "/v1/stream/docs/a", **(kind | asked))
        assert (refused.status, refused.error) == (409, "EXISTS_DIFFERENT")
        whole = f"the stream exists with another configuration: {said}. Send what it has, or choose another name"
        assert message(refused) == whole

    play(story)


def test_what_a_request_says_is_cut_in_the_message() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a", stream_closed="true")
        said = message(await world.put("docs/a", stream_closed="x" * 8000))
        assert "its Stream-Closed is true, and the request's is xxx" in said and len(said) < 600

    play(story)
