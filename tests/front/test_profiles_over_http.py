"""The profile of a stream as clients see it: at its creation, by default, and when it changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from front_world import Answer, World, play

from polynya.access import Principal
from polynya.access.grants import Grant
from polynya.front.http.api.buckets import PATH, BucketRoutes
from polynya.front.http.api.profiles import PREFIX, ProfileRoute
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.http.protocol.settings import HttpSettings

DEFAULT = HttpSettings(default_profile="diskless")


async def profile_of(world: World, name: str) -> str | None:
    return (await world.head(name)).headers.get("stream-profile")


async def change(
    world: World, name: str, profile: str, *, object_store: bool = True, method: str = "POST"
) -> tuple[int | str, str]:
    """Return the status and the profile, or the error's code and message."""
    route = ProfileRoute(world.service, object_store=object_store)
    body = json.dumps({"profile": profile}).encode()
    request = Request(method, PREFIX + name, tuple(name.split("/")), {}, {}, body, world.url)
    try:
        answer = await route.handle(request)
    except Failure as failure:
        return failure.code, failure.message
    return answer.status, json.loads(answer.body)["profile"]


def test_the_default_is_for_new_streams() -> None:
    async def story(world: World) -> None:
        plain = await world.put("a/plain", stream_profile="replicated")
        assert (plain.status, await profile_of(world, "a/plain")) == (201, None)
        assert (await world.put("a/plain")).status == 200, "it exists, with another profile"
        assert (await world.put("a/plain", stream_profile="diskless")).status == 409
        assert (await world.put("a/new")).status == 201
        assert await profile_of(world, "a/new") == "diskless"
        assert (await world.put("a/new", stream_profile="diskless")).status == 200
        named = await world.put("a/new", stream_profile="replicated")
        assert (named.status, named.error) == (409, "EXISTS_DIFFERENT")
        assert (await world.put("a/plain", stream_profile="replicated")).status == 200
        assert (await world.put("a/leased", stream_profile="leased")).status == 201
        assert (await world.put("a/leased", stream_profile="replicated")).status == 409
        assert await profile_of(world, "a/leased") == "leased"
        other = await world.put("a/new", "text/plain")
        assert (other.status, other.error) == (409, "EXISTS_DIFFERENT")

    play(story, settings=DEFAULT)


def test_the_response_to_a_put_names_the_profile_that_the_stream_has() -> None:
    async def put(world: World, name: str, **headers: str) -> tuple[int, str | None]:
        answer = await world.put(name, **headers)
        return answer.status, answer.headers.get("stream-profile")

    async def story(world: World) -> None:
        for profile in ("replicated", "leased", "diskless"):
            name = f"a/{profile}"
            assert await put(world, name, stream_profile=profile) == (201, profile)
            assert await put(world, name, stream_profile=profile) == (200, profile)
            assert await put(world, name) == (200, profile), "it exists, and no profile is asked"
        assert await put(world, "a/new") == (201, "diskless"), "the default of the node"
        for source in ("replicated", "diskless"):
            fork = {"stream_forked_from": f"/v1/stream/a/{source}"}
            assert await put(world, f"a/{source}-fork", **fork) == (201, source)

    play(story, settings=DEFAULT)


async def ask_bucket(
    world: World, method: str, bucket: str, profile: str = "", *, object_store: bool = True
) -> tuple[int | str, Any]:
    """Return the status and the body, or the error's code and message."""
    route = BucketRoutes(world.service, object_store=object_store)
    body = json.dumps({"profile": profile}).encode()
    request = Request(
        method, f"{PATH}/{bucket}/profile", (bucket, "profile"), {}, {}, body, world.url
    )
    try:
        answer = await route.handle(request)
    except Failure as failure:
        return failure.code, failure.message
    return answer.status, json.loads(answer.body) if answer.body else None


def test_the_default_of_a_bucket_is_for_its_new_streams() -> None:
    async def story(world: World) -> None:
        await world.put("logs/old")
        wanted = {"name": "logs", "profile": "diskless"}
        assert await ask_bucket(world, "PUT", "logs", "diskless") == (200, wanted)
        assert await ask_bucket(world, "GET", "logs") == (200, wanted)
        assert (await ask_bucket(world, "PUT", "plain", "replicated"))[0] == 200
        for name, named, expected in (
            ("logs/new", None, "diskless"),
            ("logs/named", "replicated", None),
            ("logs/leased", "leased", "leased"),
            ("other/x", None, None),
        ):
            more = {} if named is None else {"stream_profile": named}
            assert (await world.put(name, **more)).status == 201
            assert await profile_of(world, name) == expected, name
        assert (await world.put("logs/old")).status == 200, "it exists, and keeps its profile"
        assert await profile_of(world, "logs/old") is None
        fork = await world.put("logs/fork", stream_forked_from="/v1/stream/logs/old")
        assert (fork.status, await profile_of(world, "logs/fork")) == (201, None)
        assert await ask_bucket(world, "DELETE", "logs") == (204, None)
        await world.put("logs/later")
        assert await profile_of(world, "logs/later") is None

    play(story)


def test_the_default_of_a_bucket_comes_before_that_of_the_node() -> None:
    async def story(world: World) -> None:
        await ask_bucket(world, "PUT", "plain", "replicated")
        await world.put("plain/x")
        await world.put("other/x")
        assert await profile_of(world, "plain/x") is None
        assert await profile_of(world, "other/x") == "diskless"

    play(story, settings=DEFAULT)


def test_a_default_that_a_bucket_cannot_have_is_refused() -> None:
    async def story(world: World) -> None:
        for bucket, profile, code in (
            ("logs", "leased", "INVALID_REQUEST"),
            ("logs", "", "INVALID_REQUEST"),
            ("Logs", "diskless", "INVALID_NAME"),
        ):
            assert (await ask_bucket(world, "PUT", bucket, profile))[0] == code, bucket
        code, message = await ask_bucket(world, "PUT", "logs", "diskless", object_store=False)
        assert code == "PROFILE_CONFLICT" and "cold.backend" in message
        assert (await ask_bucket(world, "POST", "logs", "diskless"))[0] == "METHOD_NOT_ALLOWED"
        assert (await ask_bucket(world, "GET", "logs"))[1]["profile"] is None

    play(story)


def test_a_fork_has_the_profile_of_its_source() -> None:
    async def story(world: World) -> None:
        await world.put("a/plain", stream_profile="replicated")
        await world.put("a/new")
        away = await world.put(
            "a/away", stream_forked_from="/v1/stream/a/new", stream_profile="replicated"
        )
        assert (away.status, await profile_of(world, "a/away")) == (201, None)
        for source, expected in (("plain", None), ("new", "diskless")):
            fork = await world.put(f"a/f-{source}", stream_forked_from=f"/v1/stream/a/{source}")
            assert fork.status == 201
            assert await profile_of(world, f"a/f-{source}") == expected

    play(story, settings=DEFAULT)


def test_without_an_object_store_nothing_is_diskless() -> None:
    async def story(world: World) -> None:
        refused = await world.put("a/x", stream_profile="diskless")
        assert (refused.status, refused.error) == (400, "INVALID_HEADER")
        assert b"cold.backend" in refused.body
        await world.put("a/y")
        code, message = await change(world, "a/y", "diskless", object_store=False)
        assert code == "PROFILE_CONFLICT"
        assert "cold.backend" in message

    play(story, settings=HttpSettings(object_store=False))


def test_a_profile_changes_both_ways() -> None:
    async def story(world: World) -> None:
        await world.put("a/x")
        assert await change(world, "a/x", "", method="GET") == (200, "replicated")
        for profile in ("diskless", "diskless", "replicated"):
            assert await change(world, "a/x", profile) == (200, profile)
        await world.put("a/hot", stream_profile="leased")
        assert await change(world, "a/hot", "", method="GET") == (200, "leased")
        for name, profile, code in (
            ("a/hot", "diskless", "PROFILE_CONFLICT"),
            ("a/x", "leased", "INVALID_REQUEST"),
            ("a/none", "diskless", "NOT_FOUND"),
            ("kafka/t/0", "diskless", "KAFKA_PARTITION"),
        ):
            assert (await change(world, name, profile))[0] == code, name
        assert (await change(world, "a/x", "diskless", method="PUT"))[0] == "METHOD_NOT_ALLOWED"

    play(story)


def test_a_change_needs_create_and_a_look_needs_read() -> None:
    async def story(world: World) -> None:
        await world.put("a/x")
        route = ProfileRoute(world.service, object_store=True)
        reader = Principal(id="r", name="r", grants=(Grant(frozenset(["read"])),))
        for method, allowed in (("GET", True), ("POST", False)):
            body = b'{"profile":"diskless"}'
            request = Request(
                method, PREFIX + "a/x", ("a", "x"), {}, {}, body, world.url, principal=reader
            )
            code = ""
            try:
                await route.handle(request)
            except Failure as failure:
                code = failure.code
            assert code == ("" if allowed else "FORBIDDEN")

    play(story)


def test_appends_to_a_diskless_stream_without_a_writer_are_refused() -> None:
    async def story(world: World) -> None:
        await world.put("a/x", stream_profile="diskless")
        answers: list[Answer] = list(
            await asyncio.gather(*(world.post("a/x", b"1") for _ in range(3)))
        )
        assert {(answer.status, answer.error) for answer in answers} == {(503, "UNAVAILABLE")}

    play(story)
