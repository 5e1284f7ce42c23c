"""Edge cases of wakes: other incarnations, other subscriptions, work that vanishes or arrives
meanwhile, slow receivers, schedules."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest
from polling import wait_for
from receiver import receiver
from worlds.subscriptions import Shell, shell

from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.features.subscriptions.state import LinkInfo, State, Subscription
from polynya.stream.state.record_gaps import JUMP
from polynya.subscriptions import wakes
from polynya.subscriptions.keys import TOKEN_MS
from polynya.subscriptions.wakes import Wakes

TAIL = "0000000000000001_0000000000000003"


def owned(node: Shell, key: str = "s") -> Subscription:
    machines = node.world.local.machines.values()
    return next(
        machine.subscriptions.owned[key]
        for machine in machines
        if key in machine.subscriptions.owned
    )


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


async def pulled(node: Shell, key: str = "s", **more: Any) -> Any:
    """A pull-wake subscription with one pending stream, claimed."""
    await node.put(key, type="pull-wake", pattern="test/*", wake_stream="wake/pool", **more)
    if await node.world.code_of("test/a"):
        await node.world.create("test/a")
    await node.world.append("test/a", b"one")
    status, claimed = await node.ask("POST", f"subscriptions/{key}/claim", {"worker": "w1"})
    assert status == 200
    return claimed


def without_sweeps(node: Shell) -> None:
    """Disable the sweeps: only immediate updates remain."""

    async def nothing() -> None:
        pass

    node.subscriptions._sweep = nothing  # type: ignore[method-assign]


def test_tokens_are_for_one_subscription_one_life_and_some_time() -> None:
    async def story() -> None:
        async with shell() as node:
            claimed = await pulled(node)
            said = {"wake_id": claimed["wake_id"], "generation": 1}
            await pulled(node, "other")
            assert code(
                await node.ask("POST", "subscriptions/other/ack", said, claimed["token"])
            ) == (401, "TOKEN_INVALID")
            assert await node.ask("DELETE", "subscriptions/s") == (204, None)
            again = await pulled(node)
            said = {"wake_id": again["wake_id"], "generation": 1}
            assert code(await node.ask("POST", "subscriptions/s/ack", said, claimed["token"])) == (
                409,
                "FENCED",
            ), "of the life before"
            assert (await node.ask("POST", "subscriptions/s/ack", said, again["token"]))[0] == 200
            assert code(
                await node.ask(
                    "POST", "subscriptions/s/ack", {**said, "generation": 2}, again["token"]
                )
            ) == (409, "FENCED")
            owned(node).lease_until_ms = 1 << 60
            node.world.clock.ms += TOKEN_MS - 1
            assert (await node.ask("POST", "subscriptions/s/ack", said, again["token"]))[0] == 200
            owned(node).lease_until_ms = 1 << 60
            node.world.clock.ms += 10
            assert code(await node.ask("POST", "subscriptions/s/ack", said, again["token"])) == (
                401,
                "TOKEN_EXPIRED",
            )

    asyncio.run(story())


def test_a_token_comes_as_a_bearers() -> None:
    async def story() -> None:
        async with shell() as node:
            claimed = await pulled(node)
            said = {"wake_id": claimed["wake_id"], "generation": 1}
            for scheme, status in (("Basic", 401), ("", 401), ("bearer", 200)):
                answer = await node.respond(
                    "POST", "subscriptions/s/ack", said, claimed["token"], scheme
                )
                assert answer.status == status, scheme

    asyncio.run(story())


def test_a_holder_without_pending_work_still_has_the_lease() -> None:
    async def story() -> None:
        async with shell() as node:
            claimed = await pulled(node)
            said = {
                "wake_id": claimed["wake_id"],
                "generation": 1,
                "acks": [{"path": "test/a", "offset": TAIL}],
            }
            assert (await node.ask("POST", "subscriptions/s/ack", said, claimed["token"]))[0] == 200
            assert code(await node.ask("POST", "subscriptions/s/claim", {"worker": "w2"})) == (
                409,
                "ALREADY_CLAIMED",
            )

    asyncio.run(story())


def test_who_has_read_all_before_numbers_that_were_jumped_over_has_nothing_pending() -> None:
    """Jump over record numbers as a restore does: the next record gets a number that no lost one
    can have had."""

    async def story() -> None:
        async with shell() as node:
            await pulled(node)
            (stream,) = (
                machine.directory.streams["test/a"]
                for machine in node.world.local.machines.values()
                if "test/a" in machine.directory.streams
            )
            stream.next_record += JUMP
            owned(node).lease_until_ms = 0
            _, claimed = await node.ask("POST", "subscriptions/s/claim", {"worker": "w1"})
            page = await node.world.page("test/a")
            assert (page.record, page.byte) == (1, 3)
            acked = [{"path": "test/a", "offset": TAIL}]
            said = {
                "wake_id": claimed["wake_id"],
                "generation": claimed["generation"],
                "acks": acked,
                "done": True,
            }
            assert await node.ask("POST", "subscriptions/s/ack", said, claimed["token"]) == (
                200,
                {"ok": True, "next_wake": False},
            )

    asyncio.run(story())


def test_what_is_for_pull_wake_alone_is_refused_for_webhooks() -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            hook.free.clear()
            await node.put("s", type="webhook", pattern="test/*", webhook={"url": hook.url})
            await node.world.create("test/a")
            await node.world.append("test/a", b"one")
            wake: Any = (await hook.next()).wake
            said = {"wake_id": wake["wake_id"], "generation": 1}
            for verb in ("ack", "release"):
                assert code(
                    await node.ask("POST", f"subscriptions/s/{verb}", said, wake["callback_token"])
                ) == (400, "INVALID_REQUEST")
            assert code(await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})) == (
                400,
                "INVALID_REQUEST",
            )
            assert (
                await node.ask("POST", "subscriptions/s/callback", said, wake["callback_token"])
            )[0] == 200

    asyncio.run(story())


def test_a_wake_stream_is_not_followed_by_name_either() -> None:
    async def story() -> None:
        async with shell() as node:
            await node.put("s", type="pull-wake", pattern="**", wake_stream="wake/pool")
            assert code(
                await node.ask("POST", "subscriptions/s/streams", {"streams": ["wake/pool"]})
            ) == (400, "INVALID_REQUEST")
            assert (await node.ask("POST", "subscriptions/s/streams", {"streams": ["wake/else"]}))[
                0
            ] == 204

    asyncio.run(story())


def test_a_deleted_subscription_is_forgotten_everywhere_before_its_answer() -> None:
    async def story() -> None:
        async with shell() as node:
            await node.put("s", type="pull-wake", pattern="**", wake_stream="wake/pool")
            states = [machine.subscriptions for machine in node.world.local.machines.values()]
            assert sum("s" in state.watches for state in states) == len(states) - 1, (
                "in every group but that without streams"
            )
            await node.ask("DELETE", "subscriptions/s")
            assert not any(state.watches or state.graves for state in states)

    asyncio.run(story())


def test_work_that_goes_away_ends_the_wake_and_the_next_one_comes() -> None:
    """Remove the work of a failing webhook, of an unclaimed wake event, and of a claiming worker."""

    async def story() -> None:
        async with receiver() as hook, shell() as node:
            hook.answers = [(500, b"", ""), (200, b'{"done":true}', "")]
            await node.put("s", type="webhook", pattern="test/*", webhook={"url": hook.url})
            await node.put("p", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            await node.world.create("test/a")
            await node.world.append("test/a", b"one")
            await hook.next()
            await wait_for(lambda: owned(node).attempts == 1 and owned(node, "p").attempts == 1)
            await node.world.delete("test/a")
            assert code(await node.ask("POST", "subscriptions/p/claim", {"worker": "w"})) == (
                409,
                "NO_PENDING_WORK",
            )
            assert owned(node, "p").state == State.IDLE
            node.world.clock.ms = owned(node).next_attempt_ms
            await wait_for(lambda: owned(node).state == State.IDLE)
            assert hook.received.empty(), "there was nothing to tell"
            await node.world.create("wake/pool", json=True)
            await node.world.create("test/a")
            await node.world.append("test/a", b"two")
            assert (await hook.next()).wake["generation"] == 2

            # at once, or after the pause of an attempt that failed
            async def announced() -> bool:
                node.world.clock.ms += 50
                return b'"generation":2' in await node.world.read("wake/pool")

            await wait_for(announced)
            assert (await node.world.read("wake/pool")).count(b'"generation":2') == 1
            await node.world.delete("test/a")
            node.world.clock.ms = owned(node, "p").next_attempt_ms
            await wait_for(lambda: owned(node, "p").state == State.IDLE)
            assert (await node.world.read("wake/pool")).count(b'"type":"wake"') == 1, (
                "it is not announced again"
            )

    asyncio.run(story())


def test_what_comes_while_the_webhook_works_is_told_next() -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            hook.answers = [(200, b'{"done":true}', "")]
            await node.put("s", type="webhook", pattern="test/*", webhook={"url": hook.url})
            without_sweeps(node)
            await node.world.create("test/a")
            hook.free.clear()
            await node.world.append("test/a", b"one")
            first: Any = (await hook.next()).wake
            await node.world.append("test/a", b"two")
            hook.free.set()
            second: Any = (await hook.next()).wake
            assert (first["generation"], second["generation"]) == (1, 2)
            assert (
                second["streams"][0]["acked_offset"] == first["streams"][0]["tail_offset"] == TAIL
            )

    asyncio.run(story())


def test_a_lease_that_is_over_wakes_again_at_once() -> None:
    async def story() -> None:
        async with shell() as node:
            without_sweeps(node)
            await pulled(node, lease_ttl_ms=1000)
            node.world.clock.ms += 1000
            await wait_for(lambda: owned(node).generation == 2)
            assert owned(node).state == State.WAKING

    asyncio.run(story())


async def looking_by_hand(node: Shell) -> Wakes:
    """Scan only on the test's command from now on, with nothing in progress."""
    wakes = node.subscriptions._wakes
    assert node.subscriptions._task
    node.subscriptions._task.cancel()
    await wait_for(lambda: not wakes._busy)
    return wakes


def test_a_lease_does_not_run_out_under_what_its_holder_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk takes longer for the cursors than the lease lasts."""

    async def story() -> None:
        async with shell() as node:
            claimed = await pulled(node, lease_ttl_ms=1000)
            wakes, begun, go_on = await looking_by_hand(node), asyncio.Event(), asyncio.Event()
            acknowledge = wakes.links.acknowledge

            async def slowly(*asked: Any) -> None:
                begun.set()
                await go_on.wait()
                await acknowledge(*asked)

            monkeypatch.setattr(wakes.links, "acknowledge", slowly)
            said = {
                "wake_id": claimed["wake_id"],
                "generation": 1,
                "acks": [{"path": "test/a", "offset": TAIL}],
                "done": True,
            }
            answer = asyncio.create_task(
                node.ask("POST", "subscriptions/s/ack", said, claimed["token"])
            )
            await begun.wait()
            for _ in range(3):
                node.world.clock.ms += 1000
                wakes.tend()
            assert not wakes._busy
            assert code(await node.ask("POST", "subscriptions/s/claim", {"worker": "w2"})) == (
                409,
                "ALREADY_CLAIMED",
            )
            go_on.set()
            assert await answer == (200, {"ok": True, "next_wake": False})

    asyncio.run(story())


def test_a_holder_that_spoke_while_the_core_stood_still_has_its_lease() -> None:
    """Keep the lease of a holder whose message is read after a pause of the core, perhaps after
    the lease check."""

    async def story() -> None:
        async with shell() as node:
            claimed = await pulled(node, lease_ttl_ms=1000)
            wakes = await looking_by_hand(node)
            said = {"wake_id": claimed["wake_id"], "generation": 1}
            node.world.clock.ms += 5000
            wakes.tend()
            assert not wakes._busy
            assert (await node.ask("POST", "subscriptions/s/ack", said, claimed["token"]))[0] == 200
            wakes.tend()
            assert (await node.ask("POST", "subscriptions/s/ack", said, claimed["token"]))[0] == 200
            node.world.clock.ms += 1000
            for _ in range(2):
                wakes.tend()
            await wait_for(lambda: owned(node).generation == 2)
            assert code(await node.ask("POST", "subscriptions/s/ack", said, claimed["token"])) == (
                409,
                "FENCED",
            )

    asyncio.run(story())


def test_work_that_is_cancelled_before_it_begins_is_not_left_behind() -> None:
    """Close the coroutine: Python warns of one that was never awaited, and such a warning fails a
    test."""

    async def story() -> None:
        async with shell() as node:
            await pulled(node, lease_ttl_ms=1000)
            wakes = await looking_by_hand(node)
            node.world.clock.ms += 5000
            for _ in range(2):
                wakes.tend()
            assert wakes._busy
            await wakes.close()
            gc.collect()

    asyncio.run(story())


def test_what_comes_while_a_claim_finds_nothing_is_found() -> None:
    """A stream grows just when the wake before it is given up as one for nothing."""

    async def story() -> None:
        async with shell() as node:
            without_sweeps(node)
            await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            for name in ("test/a", "test/b"):
                await node.world.create(name)
            await node.world.append("test/a", b"one")
            await wait_for(lambda: owned(node).attempts == 1)
            await node.world.delete("test/a")
            await asyncio.gather(
                node.subscriptions._wakes.nothing_pending(owned(node)),
                node.world.append("test/b", b"two"),
            )
            await wait_for(lambda: owned(node).generation == 2)

    asyncio.run(story())


def test_a_wake_that_ends_while_it_is_put_together_is_not_posted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            ended = asyncio.Event()
            subscriptions = node.subscriptions._wakes
            oldest = subscriptions.links.oldest

            async def meanwhile(
                subscription: Subscription, *more: Any, **options: Any
            ) -> list[LinkInfo]:
                found = await oldest(subscription, *more, **options)
                if not ended.is_set():
                    ended.set()
                    await subscriptions.event(
                        subscription, Event.DONE, (subscription.generation, subscription.wake_id)
                    )
                return found

            monkeypatch.setattr(subscriptions.links, "oldest", meanwhile)
            await node.put("s", type="webhook", pattern="test/*", webhook={"url": hook.url})
            await node.world.create("test/a")
            await node.world.append("test/a", b"one")
            await ended.wait()
            await wait_for(lambda: not subscriptions._busy)
            assert await subscriptions.look(owned(node))
            assert (await hook.next()).wake["generation"] == 2

    asyncio.run(story())


def test_a_receiver_that_answers_nothing_in_its_lease_is_tried_again() -> None:
    async def story() -> None:
        async with receiver() as hook, shell() as node:
            hook.free.clear()
            await node.put(
                "s", type="webhook", pattern="test/*", webhook={"url": hook.url}, lease_ttl_ms=1000
            )
            await node.world.create("test/a")
            await node.world.append("test/a", b"one")
            await hook.next()
            await wait_for(lambda: owned(node).attempts == 1)

    asyncio.run(story())


def test_wakes_that_nobody_claims_are_announced_again_less_and_less_often() -> None:
    async def story() -> None:
        async with shell() as node:
            world = node.world
            await world.create("wake/pool", json=True)
            await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            await world.create("test/a")
            await world.append("test/a", b"one")

            async def pauses(count: int) -> list[int]:
                """Return the pauses in minutes after each announcement."""
                found = []
                for _ in range(count):
                    await wait_for(lambda: owned(node).next_attempt_ms > world.clock.ms)
                    found.append((owned(node).next_attempt_ms - world.clock.ms) // 60_000)
                    world.clock.ms = owned(node).next_attempt_ms
                return found

            assert await pauses(6) == [1, 2, 4, 8, 10, 10]
            await wait_for(lambda: owned(node).next_attempt_ms > world.clock.ms)
            _, claimed = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
            said = {"wake_id": claimed["wake_id"], "generation": 1}
            assert (await node.ask("POST", "subscriptions/s/release", said, claimed["token"]))[
                0
            ] == 204
            assert await pauses(2) == [1, 2], "the next wake begins anew"
            events = msgspec.json.decode(b"[" + (await world.read("wake/pool")).rstrip(b",") + b"]")
            assert [event["generation"] for event in events][:9] == [1] * 7 + [2] * 2

    asyncio.run(story())


def test_subscriptions_that_come_and_go_leave_nothing_behind_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakes, "ANNOUNCED_MAX", 2)

    async def story() -> None:
        async with shell() as node:
            await node.world.create("wake/pool", json=True)
            await node.world.create("test/a")
            for number in range(5):
                await node.put(
                    f"s{number}", type="pull-wake", pattern="test/*", wake_stream="wake/pool"
                )
                await node.world.append("test/a", b"one")
                await wait_for(
                    lambda number=number: (
                        owned(node, f"s{number}").next_attempt_ms > node.world.clock.ms
                    )
                )  # type: ignore[misc]
                assert (await node.ask("DELETE", f"subscriptions/s{number}"))[0] == 204
            assert node.subscriptions._wakes.counters.announced == 5
            assert len(node.subscriptions._wakes._announced) <= 2

    asyncio.run(story())


def test_retries_come_at_least_once_a_minute() -> None:
    async def story() -> None:
        async with shell() as node:
            await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            subscription, now = owned(node), node.world.clock.ms
            for attempts, delay in (
                (0, 1000),
                (1, 2000),
                (5, 32_000),
                (6, wakes.RETRY_MS_MAX),
                (100, wakes.RETRY_MS_MAX),
            ):
                subscription.attempts = attempts
                found = [node.subscriptions._wakes._retry_at(subscription) - now for _ in range(50)]
                assert 0.8 * delay <= min(found) < delay < max(found) <= 1.2 * delay, (
                    attempts,
                    found,
                )

    asyncio.run(story())


def test_news_of_another_life_are_over() -> None:
    async def story() -> None:
        async with shell() as node:
            await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            uid = owned(node).uid
            assert node.subscriptions._wakes.news("s", uid, "test/a")
            assert not node.subscriptions._wakes.news("s", uid + 1, "test/a")
            assert not node.subscriptions._wakes.news("none", uid, "test/a")

    asyncio.run(story())


def test_what_waits_comes_first_whatever_its_group() -> None:
    async def story() -> None:
        async with shell() as node:
            names = [f"test/{number}" for number in range(24)]
            for name in names:
                await node.world.create(name)
            await node.put("s", type="pull-wake", pattern="test/*", wake_stream="wake/pool")
            for name in names[::5]:
                await node.world.append(name, b"x")
            _, claimed = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
            pending = [link["has_pending"] for link in claimed["streams"]]
            assert (
                len(pending) == 24
                and pending == sorted(pending, reverse=True)
                and sum(pending) == 5
            )
            paths = [
                link["path"] for link in (await node.ask("GET", "subscriptions/s"))[1]["streams"]
            ]
            assert paths == sorted(names)

    asyncio.run(story())
