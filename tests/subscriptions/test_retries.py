"""Retries and dead letters end to end in one process: the routes, a real journal on a fake disk, and
the workers of the Python client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from polling import wait_for
from receiver import receiver
from worlds.service import World
from worlds.subscriptions import Shell, shell

from polynya.base.errors import UpgradePending
from polynya.base.offsets import format_token, parse_token
from polynya.client import Retry
from polynya.client.attempts import Attempts
from polynya.client.leases import Job
from polynya.client.messages import Deliver, EffectResult, HttpRequest, HttpResponse, Send
from polynya.client.worker_settings import WorkerSettings
from polynya.client.workers import Worker
from polynya.local.local import LocalGroups

PULL = {"type": "pull-wake", "pattern": "test/*", "wake_stream": "wake/pool"}
LIMITED = {**PULL, "max_attempts": 2, "dead_letter_stream": "dead/letters"}
START = "0000000000000000_0000000000000000"


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


async def begun(node: Shell, config: dict[str, Any], *records: bytes) -> list[str]:
    """Subscribe to a JSON stream of these records. Return the offset after each."""
    assert (await node.put("s", **config))[0] == 201
    await node.world.create("test/a", json=True)
    offsets = []
    for record in records:
        reply = await node.world.append("test/a", record, json=True)
        offsets.append(format_token(reply.record, reply.byte))
    return offsets


async def claimed(node: Shell) -> dict[str, Any]:
    status, claim = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
    assert status == 200, claim
    return claim  # type: ignore[no-any-return]


async def given_back(node: Shell, claim: dict[str, Any], **more: Any) -> tuple[int, Any]:
    body = {"wake_id": claim["wake_id"], "generation": claim["generation"], **more}
    return await node.ask("POST", "subscriptions/s/retry", body, claim["token"])


def story(tell: Callable[[Shell], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            async with shell() as node:
                await tell(node)

        asyncio.run(run())

    test.__name__ = tell.__name__
    return test


@story
async def test_a_record_pauses_its_subscription_longer_each_time(node: Shell) -> None:
    one, two = await begun(node, PULL, b"1", b"2")
    for attempts, pause_ms in enumerate((1000, 2000, 4000), 1):
        claim = await claimed(node)
        assert (claim["failure"] or {"attempts": 0})["attempts"] == attempts - 1
        answer = await given_back(node, claim, stream="test/a", offset=one, error="boom")
        assert answer == (
            200,
            {
                "ok": True,
                "next_wake": True,
                "attempts": attempts,
                "retry_after_ms": pause_ms,
                "dead_letter": False,
            },
        )
        shown = (await node.ask("GET", "subscriptions/s"))[1]["failure"]
        assert (shown["stream"], shown["offset"], shown["attempts"], shown["error"]) == (
            "test/a",
            START,
            attempts,
            "boom",
        )
        node.world.clock.ms += pause_ms - 1
        refused = await node.ask("POST", "subscriptions/s/claim", {"worker": "w"})
        assert code(refused) == (409, "NO_PENDING_WORK")
        assert refused[1]["error"]["retry_after_ms"] == 1
        node.world.clock.ms += 1
    claim = await claimed(node)
    acks = [{"stream": "test/a", "offset": one}]
    status, answer = await given_back(
        node, claim, acks=acks, stream="test/a", offset=two, after_ms=0
    )
    assert (status, answer["attempts"], answer["retry_after_ms"]) == (200, 1, 0), "another record"
    claim = await claimed(node)
    assert claim["failure"]["offset"] == one
    said = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    done = {**said, "acks": [{"stream": "test/a", "offset": two}]}
    assert (await node.ask("POST", "subscriptions/s/ack", done, claim["token"]))[0] == 200
    assert (await node.ask("GET", "subscriptions/s"))[1]["failure"] is None, "it was passed"


@story
async def test_the_last_attempt_puts_the_record_aside(node: Shell) -> None:
    one, _ = await begun(node, LIMITED, b'{"n":1}', b"2")
    await node.world.create("dead/letters", json=True)
    failed = {"stream": "test/a", "offset": one, "error": "boom", "after_ms": 0}
    await given_back(node, await claimed(node), **failed, record={"n": 1})
    status, answer = await given_back(node, await claimed(node), **failed, record={"n": 1})
    assert (status, answer["attempts"], answer["dead_letter"]) == (200, 2, True)
    letter = msgspec.json.decode((await node.world.read("dead/letters")).rstrip(b","))
    assert letter == {
        "type": "dead-letter",
        "subscription_id": "s",
        "stream": "test/a",
        "offset": START,
        "next_offset": one,
        "attempts": 2,
        "error": "boom",
        "worker": "w",
        "ts": node.world.clock.ms,
        "record": {"n": 1},
    }
    claim = await claimed(node)
    assert claim["failure"] is None and claim["streams"][0]["acked_offset"] == one


@story
async def test_a_record_stays_while_the_dead_letter_stream_is_missing(node: Shell) -> None:
    (one,) = await begun(node, {**LIMITED, "max_attempts": 1}, b"1")
    failed = {"stream": "test/a", "offset": one, "error": "boom"}
    status, answer = await given_back(node, await claimed(node), **failed)
    assert (status, answer["dead_letter"], answer["retry_after_ms"]) == (200, False, 1000)
    shown = (await node.ask("GET", "subscriptions/s"))[1]
    assert shown["failure"]["error"] == (
        "boom (the dead-letter stream refused the record: NOT_FOUND)"
    )
    await node.world.create("dead/letters", json=True)
    node.world.clock.ms += 1000
    assert (await given_back(node, await claimed(node), **failed))[1]["dead_letter"]
    shown = (await node.ask("GET", "subscriptions/s"))[1]
    assert shown["failure"] is None and shown["streams"][0]["acked_offset"] == one
    assert shown["state"] == "idle"


@story
async def test_what_is_not_the_failed_record_of_the_holder_is_refused(node: Shell) -> None:
    one, _ = await begun(node, PULL, b"1", b"2")
    claim = await claimed(node)
    failed = {"stream": "test/a", "offset": one}
    for wrong in (
        {"offset": START},
        {"offset": "-1"},
        {"stream": "test/b"},
        {"stream": "//"},
        {"offset": format_token(9, 9)},
    ):
        answer = await given_back(node, claim, **{**failed, **wrong})
        assert code(answer) == (409, "INVALID_OFFSET"), wrong
    for wrong in (
        {"after_ms": -1},
        {"after_ms": 86_400_001},
        {"error": "x" * 4097},
        {"offset": 7},
        {"stream": None},
    ):
        answer = await given_back(node, claim, **{**failed, **wrong})
        assert code(answer) == (400, "INVALID_REQUEST"), wrong
    body = {"wake_id": claim["wake_id"], "generation": claim["generation"], **failed}
    retry = "subscriptions/s/retry"
    bad = msgspec.json.encode(body)[:-1] + b',"record":"\xff"}'
    assert code(await node.ask("POST", retry, bad, claim["token"])) == (400, "INVALID_REQUEST")
    assert code(await node.ask("POST", retry, body)) == (401, "TOKEN_INVALID")
    assert code(await node.ask("GET", retry)) == (405, "METHOD_NOT_ALLOWED")
    assert code(await node.ask("POST", "subscriptions/none/retry", body, claim["token"])) == (
        404,
        "SUBSCRIPTION_NOT_FOUND",
    )
    assert (await given_back(node, claim, **failed))[0] == 200
    assert code(await given_back(node, claim, **failed)) == (409, "FENCED")


@story
async def test_a_limit_of_attempts_is_checked_and_confirmed(node: Shell) -> None:
    assert (await node.put("s", **LIMITED))[0] == 201
    status, shown = await node.put("s", **LIMITED)
    assert (status, shown["max_attempts"], shown["dead_letter_stream"]) == (200, 2, "dead/letters")
    assert (await node.put("s", **{**LIMITED, "max_attempts": 3}))[0] == 409
    assert (await node.put("s", **PULL))[0] == 409
    for wrong in (
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"max_attempts": None},
        {"dead_letter_stream": None},
        {"dead_letter_stream": "test/a"},
        {"dead_letter_stream": "wake/pool"},
    ):
        assert code(await node.put("t", **{**LIMITED, **wrong})) == (400, "INVALID_REQUEST"), wrong
    followed = {"streams": ["dead/letters"]}
    answer = await node.ask("POST", "subscriptions/s/streams", followed)
    assert code(answer) == (400, "INVALID_REQUEST")


@story
async def test_a_cluster_of_an_older_release_refuses_retries(node: Shell) -> None:
    claim = {"wake_id": "w", "generation": 1, "token": "t"}
    with patch.object(LocalGroups, "level", 3):
        with pytest.raises(UpgradePending, match="need level 4"):
            await node.put("s", **LIMITED)
        assert (await node.put("s", **PULL))[0] == 201
        with pytest.raises(UpgradePending, match="need level 4"):
            await given_back(node, claim, stream="test/a", offset=START)


def test_a_webhook_calls_back_with_a_failure_and_is_called_again_after_the_pause() -> None:
    async def run() -> None:
        async with receiver() as hook, shell() as node:
            hook_of = {"type": "webhook", "pattern": "test/*", "webhook": {"url": hook.url}}
            (one,) = await begun(node, hook_of, b"1")
            wake: Any = (await hook.next()).wake
            claim = {**wake, "token": wake["callback_token"]}
            answer = await given_back(node, claim, stream="test/a", offset=one, after_ms=5000)
            assert answer[0] == 200 and hook.received.empty()
            node.world.clock.ms += 5000
            again: Any = (await hook.next()).wake
            assert (again["generation"], again["streams"]) == (2, wake["streams"])

    asyncio.run(run())


class Client:
    """The workers of the Python client, on a shell instead of a network."""

    def __init__(self, node: Shell) -> None:
        self.node = node

    async def work(self, plan: WorkerSettings, handle: Callable[[Job], None]) -> None:
        """Let a worker of its own process handle the work that there is."""
        await self.run(Worker(plan, "w", Retry(), attempts=Attempts()), handle)

    async def run(self, worker: Worker, handle: Callable[[Job], None]) -> None:
        operation = worker.work(wait=False)
        effect = next(operation, None)
        while effect is not None:
            answer = None
            if isinstance(effect, Deliver):
                assert isinstance(effect.value, Job)
                handle(effect.value)
            elif isinstance(effect, Send):
                answer = await self.answer(effect.request)
            try:
                effect = operation.send(EffectResult(self.node.world.clock.ms / 1000, 0.0, answer))
            except StopIteration:
                return

    async def answer(self, request: HttpRequest) -> HttpResponse:
        url = urlsplit(request.target)
        if url.path.startswith("/v1/stream/__ds/"):
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            path = url.path.removeprefix("/v1/stream/__ds/")
            said = await self.node.respond(request.method, path, request.body or b"", token)
            return HttpResponse(said.status, {}, said.body)
        name, world = url.path.removeprefix("/v1/stream/"), self.node.world
        if request.method == "PUT":
            await world.create(name, json=True)
        position = parse_token(parse_qs(url.query).get("offset", [START])[0])
        assert position is not None
        page = await world.page(name, *position)
        body = b"".join(bytes(span.payload) for span in page.spans)
        headers = {
            "content-type": "application/json",
            "stream-next-offset": format_token(page.record, page.byte),
            **({"stream-up-to-date": "true"} if page.up_to_date else {}),
        }
        return HttpResponse(200, headers, b"[" + body.rstrip(b",") + b"]")


def test_a_poisoned_record_ends_in_the_dead_letter_stream_and_holds_up_no_other() -> None:
    async def run() -> None:
        world = World().start()
        plan = WorkerSettings(group="g", sources=("test/jobs",), lanes=1, max_attempts=3)
        done: list[Any] = []
        seen: list[int] = []

        def handle(job: Job) -> None:
            if job.value == "poison":
                seen.append(job.attempt)
                job.retry(error="boom")
            else:
                done.append(job.value)

        first = Shell(world)
        await first.subscriptions.start()
        await world.create("test/jobs", json=True)
        await Client(first).work(plan, handle)
        await world.append("test/jobs", b"1", b'"poison"', b"2", json=True)
        await Client(first).work(plan, handle)
        assert (done, seen) == ([1], [1])
        await first.subscriptions.stop()
        world.kill()  # and start again: the count and the pause are in the log
        async with shell(world) as node:
            for pause_ms, attempts in ((1000, [1, 2]), (2000, [1, 2, 3])):
                world.clock.ms += pause_ms - 1
                await Client(node).work(plan, handle)
                assert seen == attempts[:-1], "the lane pauses"
                world.clock.ms += 1
                await Client(node).work(plan, handle)
                assert seen == attempts
            assert done == [1, 2]
            letters = (await world.read("groups/g/dead-letters")).rstrip(b",")
            letter = msgspec.json.decode(letters)
            assert (letter["record"], letter["attempts"], letter["error"]) == ("poison", 3, "boom")
            shown = (await node.ask("GET", "subscriptions/g.0"))[1]
            assert shown["failure"] is None and shown["state"] == "idle"

            async def announced() -> bool:
                return b'"subscription_id":"g.0"' in await world.read("groups/g")

            await wait_for(announced)

    asyncio.run(run())
