"""An open transaction planted in the state: over HTTP nothing from its first record on is seen."""

from __future__ import annotations

import json

from front_world import World, play, request
from test_live import control

from polynya.base.names import group_of
from polynya.service.api import LiveEvent
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream

GROUPS = 2
STABLE = "0000000000000002_0000000000000004"


def stream_of(world: World) -> Stream:
    return world.service.local.machines[group_of("default/s", GROUPS)].streams["default/s"]


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


def test_live_readers_wait_for_the_end_of_a_transaction() -> None:
    async def story(world: World) -> None:
        stream = await planted(world)
        seen: list[LiveEvent] = []

        class Uncommitted:
            uncommitted = True

            def live(self, event: LiveEvent) -> None:
                seen.append(event)

        await world.service.attach("default/s", Uncommitted())
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
