"""The time of appends, of the first byte of reads and of long-polls, with the ids of traced ones."""

from __future__ import annotations

import asyncio

from front_world import World, play, request

from polynya.base.histogram import Histogram

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def ids(histogram: Histogram) -> set[tuple[str, str]]:
    return {(label, value) for label, value, _ in histogram.exemplars.values()}


def test_each_append_is_timed_and_a_traced_one_is_remembered() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        times = world.front.counters.append_seconds
        wire = await world.wire()
        for number in range(3):  # the later ones by the template
            wire.send(
                request("POST", "/v1/stream/s", b"%d" % number, content_type="application/json")
            )
            assert (await wire.answer()).status == 204
        await world.post("s", b"not json")
        assert sum(times.counts) == 3, "a body that was refused is no append"
        await world.post("missing", b"1")
        assert sum(times.counts) == 4 and times.total > 0 and not times.exemplars
        await world.post("s", b"4", traceparent=PARENT)
        assert ids(times) == {("trace_id", TRACE)}
        await world.post("s", b"5", traceparent="00-nonsense", x_request_id="r/1")
        assert ids(times) == {("request_id", "r/1")} or ids(times) == {
            ("trace_id", TRACE),
            ("request_id", "r/1"),
        }

    play(story)


def test_reads_are_timed_until_their_first_byte_and_long_polls_from_the_wake() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        counters = world.front.counters
        await world.ask("GET", "/v1/stream/s")
        await world.ask("GET", "/v1/stream/missing")
        assert sum(counters.first_byte_seconds.counts) == 2
        await world.ask("GET", "/v1/stream/s", traceparent=PARENT)
        assert ids(counters.first_byte_seconds) == {("trace_id", TRACE)}
        reader = await world.sse("s")
        await reader.chunk()
        assert sum(counters.first_byte_seconds.counts) == 4
        poll = await world.wire()
        poll.send(request("GET", "/v1/stream/s?live=long-poll&offset=now"))
        while not world.front.readers.waiters:
            await asyncio.sleep(0)
        await world.post("s", b"1")
        assert (await poll.answer()).status == 200
        assert sum(counters.long_poll_seconds.counts) == 1
        assert sum(counters.first_byte_seconds.counts) == 4, "a wait is no delay of a read"

    play(story)
