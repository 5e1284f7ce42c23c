"""An open transaction planted in the state: over HTTP nothing from its first record on is seen."""

from __future__ import annotations

import json

import pytest
from front_world import World, play, request
from test_live import control
from worlds.transactions import plant_end

from polynya.base.names import group_of
from polynya.local.api import LiveEvent
from polynya.stream.features.lifetimes.commands import Touch
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream

GROUPS = 2
STABLE = "0000000000000002_0000000000000004"


def stream_of(world: World) -> Stream:
    return world.service.local.machines[group_of("default/s", GROUPS)].directory.streams[
        "default/s"
    ]


async def planted(world: World) -> Stream:
    """A stream of five records, of which a transaction holds the third."""
    await world.put("s")
    for number in (1, 2):
        await world.post("s", b"%d" % number)
    stream = stream_of(world)
    stream.kafka = KafkaState(open={7: OpenTransaction(2, 4, 0, world.service.clock)})
    for number in (3, 4, 5):
        await world.post("s", b"%d" % number)
    return stream


def test_pages_heads_and_times_stop_at_an_open_transaction() -> None:
    async def story(world: World) -> None:
        stream = await planted(world)
        page = await world.get("s", "?offset=-1")
        assert (json.loads(page.body), page.headers["stream-next-offset"]) == ([1, 2], STABLE)
        assert page.headers["stream-up-to-date"] == "true"
        head = await world.head("s")
        assert head.headers["stream-next-offset"] == STABLE
        assert (await world.head("s")).headers["etag"] == head.headers["etag"]
        await world.post("s", b"6")
        assert (await world.head("s")).headers["etag"] == head.headers["etag"]
        now = await world.get("s", "?offset=now")
        assert (json.loads(now.body), now.headers["stream-next-offset"]) == ([], STABLE)
        late = await world.get("s", "?from_time=2099-01-01T00:00:00Z")
        assert late.headers["stream-next-offset"] == STABLE
        behind = await world.get("s", "?offset=0000000000000004_0000000000000008")
        assert (behind.status, json.loads(behind.body)) == (200, [])
        beyond = await world.get("s", "?offset=0000000000000099_0000000000000099")
        assert beyond.status == 400
        await world.ask("POST", "/v1/stream/s", stream_closed="true")
        assert "stream-closed" not in (await world.head("s")).headers, "more will be seen"
        stream.kafka = None
        whole = await world.get("s", "?offset=-1")
        assert json.loads(whole.body) == [1, 2, 3, 4, 5, 6]
        assert (await world.head("s")).headers["stream-closed"] == "true"

    play(story)


def test_a_condition_at_an_open_transaction_waits_for_its_end() -> None:
    """Wait for the transaction: its commit precedes the append, and the writer has not seen it."""

    async def story(world: World) -> None:
        stream = await planted(world)
        tag = (await world.head("s")).headers["etag"]
        for condition in (
            {"if_match": f'"{STABLE}"'},
            {"if_match": tag},
            {"stream_expected_offset": STABLE},
            {"stream_record_match": "2"},
            {"stream_record_match": "5"},  # the high watermark, which an append answers
        ):
            waits = await world.post("s", b"6", **condition)
            assert (waits.status, waits.error) == (503, "TRANSACTION_OPEN")
            assert waits.headers["retry-after"] == "1"
            assert waits.headers["stream-next-offset"] == STABLE
        for record in ("1", "6"):
            refused = await world.post("s", b"6", stream_record_match=record)
            assert (refused.status, refused.headers["stream-next-offset"]) == (412, STABLE)
        assert len(json.loads((await world.get("s")).body)) == 2
        stream.kafka = None
        assert (await world.post("s", b"6", stream_record_match="2")).status == 412
        assert (await world.post("s", b"6", stream_record_match="5")).status == 204

    play(story)


def end(world: World, stream: Stream, producer: int) -> None:
    """End a transaction by a command, whose rule is planted."""
    touch = Touch([(stream.uid, producer)], world.service.clock)
    world.service.propose(stream.name, touch, lambda reply: None)


def test_live_readers_are_woken_by_the_end_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_end(monkeypatch)

    async def story(world: World) -> None:
        stream = await planted(world)
        assert stream.kafka is not None
        stream.kafka.open[9] = OpenTransaction(4, 8, 0, world.service.clock)
        seen: list[LiveEvent] = []

        class Committed:
            def live(self, event: LiveEvent) -> None:
                seen.append(event)

        await world.service.open("default/s").attach(Committed())
        readers = [await world.sse("s"), await world.sse("s", "?live=sse&offset=now")]
        for reader in readers:
            assert control(await reader.chunk())["streamNextOffset"] == STABLE
        polls = [await world.wire() for _ in range(2)]
        for poll, offset in zip(polls, (STABLE, "now"), strict=True):
            query = f"live=long-poll&offset={offset}&timeout_ms=60000"
            poll.send(request("GET", f"/v1/stream/s?{query}"))
        await world.until(lambda: len(world.front.readers.waiters) == 2)
        end(world, stream, 7)
        for poll in polls:
            assert (await poll.answer()).body == b"[3,4]", "the other one is open"
        for reader in readers:
            assert b"data:[3,4]\n" in await reader.chunk()
        end(world, stream, 9)
        for reader in readers:
            assert b"data:[5]\n" in await reader.chunk()
        ends = [(each.begin_record, each.record, each.payload) for each in seen]
        assert ends == [(2, 4, b""), (4, 5, b"")]

    play(story)


def test_the_end_of_a_transaction_ends_readers_of_a_closed_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant_end(monkeypatch)

    async def story(world: World) -> None:
        stream = await planted(world)
        await world.ask("POST", "/v1/stream/s", stream_closed="true")
        reader = await world.sse("s")
        assert control(await reader.chunk())["streamNextOffset"] == STABLE
        assert stream.kafka is not None
        stream.kafka.open[9] = OpenTransaction(3, 6, 0, world.service.clock)
        end(world, stream, 9)
        end(world, stream, 7)
        last = await reader.chunk()
        assert b"data:[3,4,5]\n" in last
        assert control(last)["streamClosed"]
        assert await reader.chunk() == b""

    play(story)


def test_live_readers_wait_for_the_end_of_a_transaction() -> None:
    async def story(world: World) -> None:
        stream = await planted(world)
        seen: list[LiveEvent] = []

        class Uncommitted:
            uncommitted = True

            def live(self, event: LiveEvent) -> None:
                seen.append(event)

        await world.service.open("default/s").attach(Uncommitted())
        reader = await world.sse("s")
        first = await reader.chunk()
        assert b"data:[1,2]\n" in first and control(first)["streamNextOffset"] == STABLE
        wire = await world.wire()
        wire.send(request("GET", f"/v1/stream/s?live=long-poll&offset={STABLE}"))
        await world.post("s", b"6")
        assert (await wire.answer()).status == 204, "the time is over"
        assert [(event.begin_record, event.record) for event in seen] == [(5, 6)]
        stream.kafka = None
        await world.post("s", b"7")
        found = b""
        while b"7" not in found:
            found += await reader.chunk()
        assert b"data:[3,4,5,6,7]\n" in found

    play(story)
