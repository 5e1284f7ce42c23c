"""Workers of the Python client keep streams: against the server, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from test_retries import Client, story
from worlds.subscriptions import Shell

from polynya.client import Refused, Retry, Unavailable
from polynya.client.attempts import Attempts
from polynya.client.lanes import KeptLanes
from polynya.client.messages import Broken, EffectResult, HttpResponse, Pause, Send
from polynya.client.worker_settings import WorkerSettings
from polynya.client.workers import Worker

PLAN = WorkerSettings(group="g", sources=("test/*",), lanes=4, by="stream")
STREAMS = [f"test/{number}" for number in range(12)]
RETRY = Retry(seconds=5.0)


class Crew:
    """Workers that handle what there is, one after the other, and who handled what."""

    def __init__(self, node: Shell, *names: str) -> None:
        self.node = node
        self.client = Client(node)
        self.workers = {name: Worker(PLAN, name, RETRY, attempts=Attempts()) for name in names}

    async def turn(self, *names: str) -> dict[str, str]:
        """Append a record to each stream, and let these workers handle them, in this order. Return
        who handled each stream."""
        for stream in STREAMS:
            await self.node.world.append(stream, b"1", json=True)
        return await self.rest(*names)

    async def rest(self, *names: str) -> dict[str, str]:
        done: dict[str, str] = {}
        for name in names:
            await self.client.run(
                self.workers[name], lambda job, name=name: done.update({job.stream: name})
            )
        return done


@story
async def test_a_stream_stays_at_its_worker_and_moves_when_that_one_is_gone(node: Shell) -> None:
    crew = Crew(node, "a", "b")
    for stream in STREAMS:
        await node.world.create(stream, json=True)
    await crew.rest("a")
    assert await crew.turn("a", "b") == dict.fromkeys(STREAMS, "a")
    node.world.clock.ms += 10_000  # the next report of a is due
    shared = await crew.turn("a", "b", "a", "b")
    assert sorted(crew.workers["a"].lanes + crew.workers["b"].lanes) == [0, 1, 2, 3]
    assert set(shared.values()) == {"a", "b"} and set(shared) == set(STREAMS)
    for order in ("ab", "ba", "ba"):
        node.world.clock.ms += 10_000
        assert await crew.turn(*order) == shared, "whoever asks first"
    node.world.clock.ms += 29_000
    assert set((await crew.turn("b")).values()) == {"b"} and len(crew.workers["b"].lanes) == 2
    node.world.clock.ms += 10_000
    assert set(await crew.rest("b")) == {each for each in STREAMS if shared[each] == "a"}
    assert await crew.turn("a", "b") == dict.fromkeys(STREAMS, "b"), "a comes back without lanes"


@story
async def test_a_worker_that_leaves_gives_its_lanes_to_the_others(node: Shell) -> None:
    crew = Crew(node, "a", "b")
    for stream in STREAMS:
        await node.world.create(stream, json=True)
    await crew.rest("a", "b")
    goodbye = crew.workers["a"].leave()
    assert goodbye is not None and (await crew.client.answer(goodbye)).status == 200
    node.world.clock.ms += 10_000
    assert await crew.turn("b") == dict.fromkeys(STREAMS, "b")
    assert Worker(WorkerSettings(group="g", sources=("s",)), "c", RETRY).leave() is None


@story
async def test_a_heartbeat_reports_while_a_record_is_handled_and_not_for_too_long(
    node: Shell,
) -> None:
    crew = Crew(node, "a")
    for stream in STREAMS:
        await node.world.create(stream, json=True)
    worker, seen = crew.workers["a"], list[list[Any]]()

    def handle(job: Any) -> None:
        for now in (node.world.clock.ms / 1000, node.world.clock.ms / 1000 + 600):
            seen.append([msgspec.json.decode(request.body) for request, _ in worker.beats(now)])

    await crew.rest("a")
    await node.world.append(STREAMS[0], b"1", json=True)
    await crew.client.run(worker, handle)
    (lease, report), late = seen
    assert lease["acks"] == [] and late == []
    assert report["busy"] == [PLAN.lane_of(STREAMS[0], 0)] and report["lanes"] == 4
    ((request, take),) = worker.beats(0.0)
    assert msgspec.json.decode(request.body)["busy"] == []
    take(await crew.client.answer(request))
    assert worker.lanes == [0, 1, 2, 3]


def reported(kept: KeptLanes, now: float | None, *answers: Any) -> list[float]:
    """Run a report against these answers; return the pauses between them. Each takes a second."""
    operation, left, paused, at = kept.renew(now, RETRY), list(answers), list[float](), now or 100.0
    effect = next(operation)
    while True:
        what = left.pop(0) if isinstance(effect, Send) else None
        if isinstance(effect, Pause):
            paused.append(effect.seconds)
        at += 1.0 if isinstance(effect, Send) else 0.0
        try:
            effect = operation.send(EffectResult(at, 0.0, what))
        except StopIteration:
            assert not left
            return paused


def share(*lanes: int) -> HttpResponse:
    return HttpResponse(200, {}, msgspec.json.encode({"lanes": lanes, "session_ms": 30_000}))


def test_a_report_without_an_answer_is_repeated_while_the_last_one_counts() -> None:
    kept = KeptLanes("/g.0", "w", 4, is_sticky=True)
    assert kept.lanes == [] and not kept.has(0)
    assert len(reported(kept, None, Broken(True, "lost"), share(1, 3))) == 2
    assert kept.lanes == [1, 3] and kept.has(3)
    reported(kept, 112.0, Broken(False, "down"))
    assert kept.lanes == [1, 3], "its session lasts"
    with pytest.raises(Unavailable):
        reported(kept, 131.0, *[Broken(False, "down")] * 9)
    assert kept.lanes == [], "it may be over"
    reported(kept, 140.0, share(2))
    answer = kept.beat([2], 141.0)[1]
    newer = kept.beat([2], 142.0)[1]
    newer(share(2, 3))
    answer(share(2))
    assert kept.lanes == [2, 3], "an older answer comes late"


@pytest.mark.parametrize(
    "answer",
    [HttpResponse(404, {}), HttpResponse(503, {}, b'{"error":{"code":"UPGRADE_PENDING"}}')],
)
def test_a_server_without_reports_leaves_all_lanes_to_all(answer: HttpResponse) -> None:
    kept = KeptLanes("/g.0", "w", 2, is_sticky=True)
    reported(kept, 1.0, answer)
    assert kept.lanes == [0, 1] and not kept.are_shared


def test_a_worker_too_many_waits_and_one_of_another_group_is_refused() -> None:
    kept = KeptLanes("/g.0", "w", 2, is_sticky=True)
    reported(kept, 1.0, HttpResponse(429, {}, b'{"error":{"code":"TOO_MANY_WORKERS"}}'))
    assert kept.lanes == [] and kept.are_shared
    with pytest.raises(Refused) as refused:
        reported(kept, 20.0, HttpResponse(409, {}, b'{"error":{"code":"LANES_DIFFER"}}'))
    assert refused.value.code == "LANES_DIFFER"


def test_moved_lanes_are_asked_for_at_once() -> None:
    async def run() -> None:
        worker = Worker(PLAN, "w", RETRY, attempts=Attempts())
        wakes = [{"type": "wake", "subscription_id": "g.2"}, {"type": "workers"}]
        operation = worker._wait()
        next(operation)
        headers = {"content-type": "application/json", "stream-next-offset": "1_1"}
        with pytest.raises(StopIteration) as stopped:
            operation.send(
                EffectResult(1.0, 0.0, HttpResponse(200, headers, msgspec.json.encode(wakes)))
            )
        assert stopped.value.value == set()

    asyncio.run(run())
