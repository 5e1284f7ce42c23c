"""Subscriptions end to end in one process: real webhooks on loopback, the routes, a real journal on
a fake disk."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from polling import wait_for
from receiver import receiver
from worlds.service import World
from worlds.subscriptions import BASE, Shell, shell

from polynya.stream.features.subscriptions.commands import LinkSubscription
from polynya.stream.features.subscriptions.state import State

TAIL = "0000000000000001_0000000000000003"
START = "0000000000000000_0000000000000000"


def cursor(answer: Any, path: str) -> str:
    return next(link["acked_offset"] for link in answer["streams"] if link["path"] == path)


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def test_a_webhook_that_says_done_moves_the_cursors_of_what_it_was_told() -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            hook.answers = [(200, b'{"done":true}', "")]
            status, made = await node.put(
                "s", type="webhook", pattern="test/*", webhook={"url": hook.url}
            )
            assert status == 201
            await node.world.create("test/a", batch=None)
            await node.world.append("test/a", b"one")
            received = await hook.next()
            wake: Any = received.wake
            assert wake["streams"] == [
                {
                    "path": "test/a",
                    "link_type": "glob",
                    "acked_offset": START,
                    "tail_offset": TAIL,
                    "has_pending": True,
                }
            ]
            assert wake["callback_url"] == f"{BASE}/v1/stream/__ds/subscriptions/s/callback"
            await check_signature(
                node,
                received.headers["webhook-signature"],
                received.body,
                made["webhook"]["signing"]["kid"],
            )

            async def acknowledged() -> bool:
                return cursor((await node.ask("GET", "subscriptions/s"))[1], "test/a") == TAIL

            await wait_for(acknowledged)
            await node.world.append("test/a", b"two")
            assert (await hook.next()).wake["generation"] == 2

    asyncio.run(story())


async def check_signature(node: Shell, header: str, body: bytes, kid: str) -> None:
    response = await node.respond("GET", "jwks.json")
    assert (response.content_type, dict(response.headers)["Cache-Control"]) == (
        "application/jwk-set+json",
        "public, max-age=300",
    )
    (key,) = msgspec.json.decode(response.body)["keys"]
    said = dict(part.split("=", 1) for part in header.split(","))
    assert said["kid"] == key["kid"] == kid
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    public.verify(
        base64.urlsafe_b64decode(said["ed25519"] + "=="), said["t"].encode() + b"." + body
    )


def test_callbacks_are_checked_fenced_and_applied() -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            await node.put("s", type="webhook", streams=["test/a"], webhook={"url": hook.url})
            await node.world.create("test/a")
            await node.world.append("test/a", b"one")
            wake: Any = (await hook.next()).wake
            token, callback = wake["callback_token"], "subscriptions/s/callback"
            said = {"wake_id": wake["wake_id"], "generation": 1}
            assert code(await node.ask("POST", callback, said)) == (401, "TOKEN_INVALID")
            assert code(await node.ask("POST", callback, said, token[:-2])) == (
                401,
                "TOKEN_INVALID",
            )
            assert code(await node.ask("POST", callback, {**said, "wake_id": "w_0"}, token)) == (
                409,
                "FENCED",
            )
            assert code(await node.ask("POST", callback, {**said, "generation": 2}, token)) == (
                409,
                "FENCED",
            )
            assert (await node.ask("POST", callback, {**said, "generation": 10**30}, token))[
                0
            ] == 400, "no log can hold it"
            for stream, offset in (
                ("test/b", TAIL),
                ("test/a", "-1"),
                ("test/a", "0000000000000009_0000000000000009"),
            ):
                acks = [{"stream": "test/a", "offset": TAIL}, {"stream": stream, "offset": offset}]
                assert code(await node.ask("POST", callback, {**said, "acks": acks}, token)) == (
                    409,
                    "INVALID_OFFSET",
                )
            assert cursor((await node.ask("GET", "subscriptions/s"))[1], "test/a") == START
            acked = {**said, "acks": [{"path": "/test/a", "offset": TAIL}]}
            assert await node.ask("POST", callback, acked, token) == (
                200,
                {"ok": True, "next_wake": False},
            )
            back = {**said, "acks": [{"stream": "test/a", "offset": START}]}
            assert code(await node.ask("POST", callback, back, token)) == (409, "INVALID_OFFSET")
            await node.world.append("test/a", b"two")
            assert await node.ask("POST", callback, {**acked, "done": True}, token) == (
                200,
                {"ok": True, "next_wake": True},
            )
            assert code(await node.ask("POST", callback, acked, token)) == (409, "FENCED")
            assert (await hook.next()).wake["generation"] == 2
            assert await node.ask("DELETE", "subscriptions/s") == (204, None)
            assert code(await node.ask("POST", callback, acked, token)) == (
                404,
                "SUBSCRIPTION_NOT_FOUND",
            )

    asyncio.run(story())


def test_a_failing_receiver_is_tried_again_on_a_schedule_that_survives_a_crash() -> None:
    async def story() -> None:
        world = World().start()
        async with receiver() as hook:
            hook.answers = [
                (500, b"", ""),
                (302, b"", f"Location: {hook.url}\r\n"),
                (200, b'{"done":true}', ""),
            ]
            first = Shell(world)
            await first.subscriptions.start()
            await first.put(
                "s", type="webhook", pattern="test/*", webhook={"url": hook.url}, lease_ttl_ms=1000
            )
            await world.create("test/a")
            await world.append("test/a", b"one")
            failed = (await hook.next()).wake

            async def scheduled() -> bool:
                return bool((await first.ask("GET", "subscriptions/s"))[1]["status"] == "failed")

            await wait_for(scheduled)
            await first.subscriptions.stop()
            world.kill()
            async with shell(world) as second:
                shown = (await second.ask("GET", "subscriptions/s"))[1]
                assert (shown["status"], shown["state"], shown["generation"]) == (
                    "failed",
                    "waking",
                    1,
                )
                subscription = next(
                    subscription
                    for machine in world.local.machines.values()
                    for subscription in machine.subscriptions.owned.values()
                )
                assert 800 <= subscription.next_attempt_ms - world.clock.ms <= 1200
                world.clock.ms = subscription.next_attempt_ms
                again = (await hook.next()).wake
                assert (again["wake_id"], again["generation"]) == (failed["wake_id"], 1)

                async def tried_twice() -> bool:
                    return subscription.attempts == 2

                await wait_for(tried_twice)  # a redirect is not followed
                assert 1600 <= subscription.next_attempt_ms - world.clock.ms <= 2400
                world.clock.ms = subscription.next_attempt_ms
                await hook.next()

                async def idle() -> bool:
                    return (await second.ask("GET", "subscriptions/s"))[1]["state"] == "idle"

                await wait_for(idle)
                shown = (await second.ask("GET", "subscriptions/s"))[1]
                assert (shown["status"], shown["next_attempt_at"], cursor(shown, "test/a")) == (
                    "active",
                    None,
                    TAIL,
                )

    asyncio.run(story())


def test_workers_of_a_pull_wake_subscription() -> None:
    async def story() -> None:
        async with shell() as node:
            world = node.world
            await node.put(
                "p", type="pull-wake", pattern="test/**", wake_stream="wake/pool", lease_ttl_ms=1000
            )
            assert code(await node.ask("POST", "subscriptions/p/claim", {"worker": "w"})) == (
                409,
                "NO_PENDING_WORK",
            )
            await world.create("test/a")
            await world.append("test/a", b"one")
            subscription = next(
                subscription
                for machine in world.local.machines.values()
                for subscription in machine.subscriptions.owned.values()
            )

            async def failed() -> bool:
                return subscription.attempts > 0  # the wake stream is the application's to make

            await wait_for(failed)
            await world.create("wake/pool", json=True)
            world.clock.ms = subscription.next_attempt_ms

            async def announced() -> bool:
                return (
                    b'"subscription_id":"p","stream":"test/a","generation":1'
                    in await world.read("wake/pool")
                )

            await wait_for(announced)
            status, claimed = await node.ask("POST", "subscriptions/p/claim", {"worker": "w1"})
            assert (status, claimed["generation"], claimed["lease_ttl_ms"]) == (200, 1, 1000)
            assert claimed["streams"][0]["tail_offset"] == TAIL
            busy = await node.ask("POST", "subscriptions/p/claim", {"worker": "w2"})
            assert busy[0] == 409 and busy[1]["error"] | {"message": ""} == {
                "code": "ALREADY_CLAIMED",
                "message": "",
                "current_holder": "w1",
                "generation": 1,
            }
            said = {"wake_id": claimed["wake_id"], "generation": 1}
            world.clock.ms += 900
            assert (await node.ask("POST", "subscriptions/p/ack", said, claimed["token"]))[
                0
            ] == 200  # a heartbeat
            world.clock.ms += 900
            assert (await node.ask("POST", "subscriptions/p/ack", said, claimed["token"]))[0] == 200
            world.clock.ms += 1000

            async def woken_again() -> bool:
                return subscription.generation == 2 and subscription.state == State.WAKING

            await wait_for(woken_again)  # the lease is over and there is work left
            assert code(
                await node.ask("POST", "subscriptions/p/release", said, claimed["token"])
            ) == (409, "FENCED")
            _, claimed = await node.ask("POST", "subscriptions/p/claim", {"worker": "w2"})
            said = {"wake_id": claimed["wake_id"], "generation": 2}
            assert await node.ask("POST", "subscriptions/p/release", said, claimed["token"]) == (
                204,
                None,
            )
            assert (subscription.generation, subscription.state) == (3, State.WAKING)
            _, claimed = await node.ask("POST", "subscriptions/p/claim", {"worker": "w3"})
            done = {
                "wake_id": claimed["wake_id"],
                "generation": 3,
                "acks": [{"stream": "test/a", "offset": TAIL}],
                "done": True,
            }
            assert await node.ask("POST", "subscriptions/p/ack", done, claimed["token"]) == (
                200,
                {"ok": True, "next_wake": False},
            )
            assert code(await node.ask("POST", "subscriptions/p/claim", {"worker": "w"})) == (
                409,
                "NO_PENDING_WORK",
            )

    asyncio.run(story())


def test_configuration_is_checked_and_confirmed() -> None:
    async def story() -> None:
        async with shell() as node:
            good: dict[str, Any] = {
                "type": "pull-wake",
                "pattern": "/test/*/",
                "wake_stream": "wake/pool",
                "streams": ["b/x", "a", "a"],
            }
            assert (await node.put("s", **good))[0] == 201
            assert (await node.put("s", **{**good, "pattern": "test/*", "streams": ["a", "b/x"]}))[
                0
            ] == 200
            assert code(await node.put("s", **{**good, "lease_ttl_ms": 1000})) == (
                409,
                "SUBSCRIPTION_ALREADY_EXISTS",
            )
            for wrong in (
                {"type": "smoke"},
                {"pattern": "", "streams": []},
                {"pattern": "a*"},
                {"pattern": "a//b"},
                {"streams": ["wake/pool"]},
                {"streams": ["_x"]},
                {"lease_ttl_ms": 999},
                {"lease_ttl_ms": 600_001},
                {"lease_ttl_ms": 1500.5},
                {"wake_stream": ""},
                {"type": "webhook"},
            ):
                assert code(await node.put("t", **{**good, **wrong})) == (400, "INVALID_REQUEST"), (
                    wrong
                )
            assert code(await node.ask("PUT", "subscriptions/t", b"{")) == (400, "INVALID_REQUEST")
            assert code(await node.ask("PUT", "subscriptions/t", b'{"x":' + b"[" * 200_000)) == (
                400,
                "INVALID_REQUEST",
            )
            assert code(await node.ask("GET", "subscriptions/t")) == (404, "SUBSCRIPTION_NOT_FOUND")
            assert code(await node.ask("GET", "subscription")) == (404, "SUBSCRIPTION_NOT_FOUND")
            assert (await node.ask("PATCH", "subscriptions/s"))[0] == 405
            assert await node.ask("DELETE", "subscriptions/never") == (204, None)
            assert await node.ask("POST", "subscriptions/s/streams", {"streams": ["c/d"]}) == (
                204,
                None,
            )
            assert await node.ask("DELETE", "subscriptions/s/streams/b%2Fx") == (204, None)
            assert await node.ask("DELETE", "subscriptions/s/streams/c/d") == (204, None)
            shown = (await node.ask("GET", "subscriptions/s"))[1]
            assert shown["streams"] == [
                {
                    "path": "a",
                    "link_type": "explicit",
                    "acked_offset": START,
                    "tail_offset": START,
                    "lag": 0,
                }
            ]
            assert (await node.put("s", **good))[
                0
            ] == 200  # the members may change; the configuration is the same

    asyncio.run(story())


def test_subscriptions_are_listed_by_id_in_pages() -> None:
    async def story() -> None:
        async with shell() as node:
            assert await node.ask("GET", "subscriptions") == (
                200,
                {"subscriptions": [], "next": None},
            )
            for number in reversed(range(5)):
                await node.put(
                    f"a-{number}", type="pull-wake", streams=["x", "y"], wake_stream="wake/pool"
                )
            await node.put(
                "b", type="webhook", pattern="x/*", webhook={"url": "http://127.0.0.1:1/"}
            )
            first = (await node.ask("GET", "subscriptions", limit="4", prefix="a-"))[1]
            rest = (
                await node.ask("GET", "subscriptions", limit="4", prefix="a-", after=first["next"])
            )[1]
            assert [row["id"] for row in first["subscriptions"] + rest["subscriptions"]] == [
                f"a-{number}" for number in range(5)
            ]
            assert rest["next"] is None
            assert (
                first["subscriptions"][0]["explicit_streams"],
                first["subscriptions"][0]["wake_stream"],
            ) == (2, "wake/pool")
            (last,) = (await node.ask("GET", "subscriptions", after="a-9"))[1]["subscriptions"]
            assert (last["id"], last["pattern"], last["webhook"]) == (
                "b",
                "x/*",
                {"url": "http://127.0.0.1:1/"},
            )
            assert (await node.ask("POST", "subscriptions"))[0] == 405
            assert (await node.ask("GET", "subscriptions", limit="few"))[0] == 400

    asyncio.run(story())


def test_pages_of_a_subscription_with_many_streams() -> None:
    async def story() -> None:
        async with shell() as node:
            await node.put(
                "s",
                type="pull-wake",
                streams=[f"test/{number:03d}" for number in range(50)],
                wake_stream="wake/pool",
            )
            after, seen = "", []
            while True:
                page = (await node.ask("GET", "subscriptions/s", limit="7", after=after))[1]
                seen += [link["path"] for link in page["streams"]]
                if "streams_after" not in page:
                    break
                after = page["streams_after"]
            assert seen == [f"test/{number:03d}" for number in range(50)]

    asyncio.run(story())


def test_what_a_crash_left_between_groups_is_repaired() -> None:
    """Repair an undelivered wake, a PUT that reached only its home, and links of an ended
    incarnation."""

    async def story() -> None:
        world = World().start()
        async with receiver() as hook:
            hook.answers = [(200, b'{"done":true}', "")]
            deaf = Shell(world)  # never started: nothing is swept
            world.engine.after_turn.remove(deaf.subscriptions.pump)
            await deaf.put("s", type="webhook", pattern="test/*", webhook={"url": hook.url})
            await world.create("test/a")
            await world.append("test/a", b"one")
            await world.service.call(2, LinkSubscription("gone", 77, 1, "**", "", []))
            await world.snapshot()
            world.kill()
            async with shell(world) as node:
                assert (await hook.next()).wake["generation"] == 1
                name = next(
                    name
                    for name in (f"test/{number}" for number in range(99))
                    if world.service.group_of(name) == 2
                )
                await world.create(name)
                await world.append(name, b"x")

                async def forgotten() -> bool:
                    return "gone" not in world.local.machines[2].subscriptions.watches

                await wait_for(forgotten)
                assert (await node.ask("GET", "subscriptions/s"))[0] == 200

    asyncio.run(story())


def test_whoever_started_it_hears_when_it_comes_to_an_end() -> None:
    """Report the end of the background task to its creator: otherwise due work would silently
    stop."""

    async def story() -> None:
        async with shell() as node:
            await node.subscriptions.stop()
            ended: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
            node.subscriptions._wakes.tend = _broken  # type: ignore[method-assign]
            await node.subscriptions.start(ended.set_result)
            async with asyncio.timeout(30):
                assert isinstance((await ended).exception(), ZeroDivisionError)

    asyncio.run(story())


def _broken() -> None:
    raise ZeroDivisionError
