"""The spans of traced requests: who decides that one is traced, and what its parts are."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest
from front_world import World, play, request

from polynya.base.spans import SPANS_PER_REQUEST_MAX, Span, Tracer, parent_of, step, within

TRACE, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT_ID}-01", f"00-{TRACE}-{PARENT_ID}-00"


def tracer_of(ratio: float = 0.0, *, follows_clients: bool = True, queue_max: int = 100) -> Tracer:
    numbers = random.Random(7)
    return Tracer(
        ratio=ratio,
        follows_clients=follows_clients,
        queue_max=queue_max,
        now_ns=count(1000).__next__,
        random=numbers.random,
        bits=numbers.getrandbits,
    )


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (SAMPLED, True),
        (UNSAMPLED, False),
        (f"00-{TRACE}-{PARENT_ID}-03", True),
        (f"cc-{TRACE}-{PARENT_ID}-01-more", True),
        (f"00-{TRACE}-{PARENT_ID}-01-more", None),
        (f"ff-{TRACE}-{PARENT_ID}-01", None),
        (f"00-{'0' * 32}-{PARENT_ID}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (SAMPLED.upper(), None),
        ("nonsense", None),
    ],
)
def test_a_parent_is_read_as_the_standard_says(header: str, is_sampled: bool | None) -> None:
    found = parent_of(header)
    assert (found and found[2]) == is_sampled
    if found:
        assert found[:2] == (int(TRACE, 16), int(PARENT_ID, 16))


def test_the_client_decides_or_the_ratio() -> None:
    assert tracer_of(0.0).begin("a", SAMPLED)
    assert tracer_of(1.0).begin("a", UNSAMPLED) is None
    assert tracer_of(0.0).begin("a") is None
    root = tracer_of(1.0).begin("a")
    assert root is not None and not root.parent and not root.remote
    always, never = tracer_of(1.0, follows_clients=False), tracer_of(0.0, follows_clients=False)
    child = always.begin("a", UNSAMPLED)
    assert child is not None and child.remote and child.trace_id == TRACE
    assert never.begin("a", SAMPLED) is None
    half = tracer_of(0.5)
    assert 400 < sum(half.begin("a") is not None for _ in range(1000)) < 600
    half = tracer_of(0.5)
    chosen = [half.choose() and half.begin("a") is not None for _ in range(1000)]
    assert 400 < sum(chosen) < 600


def test_a_full_queue_drops_and_counts() -> None:
    tracer = tracer_of(1.0, queue_max=4)
    lengths: list[int] = []
    tracer.on_half = lambda: lengths.append(len(tracer.queue))
    for _ in range(6):
        ended(tracer)
    assert (tracer.spans, tracer.dropped, len(tracer.queue), lengths) == (6, 2, 4, [2])
    assert len(tracer.take(3)) == 3 and len(tracer.take(3)) == 1 and not tracer.take(3)
    ended(tracer)
    assert len(tracer.queue) == 1


def test_a_request_has_a_limited_number_of_spans_and_none_after_its_end() -> None:
    tracer = tracer_of(1.0, queue_max=10_000)
    root = tracer.begin("a")
    assert root is not None

    def work() -> None:
        for _ in range(SPANS_PER_REQUEST_MAX + 10):
            with step("part"):
                pass
        root.end()
        with step("late") as late:
            assert late is None

    within(root, work)
    assert len(tracer.queue) == SPANS_PER_REQUEST_MAX
    assert tracer.queue[-1] is root and tracer.dropped == 11


def ended(tracer: Tracer) -> None:
    span = tracer.begin("a")
    assert span is not None
    span.end()


def traced(story: Callable[..., object], **options: float) -> list[Span]:
    """Run a story with a tracer, and return its spans."""
    tracer = tracer_of(**options)  # type: ignore[arg-type]

    async def traced_story(world: World) -> None:
        await world.put("s")
        world.front.context.tracer = tracer
        await story(world)  # type: ignore[misc]

    play(traced_story)
    return [*tracer.queue]


def test_an_append_is_traced_under_its_client() -> None:
    async def story(world: World) -> None:
        await world.post("s", b"1", traceparent=SAMPLED, x_request_id="r1")
        await world.post("s", b"2", traceparent=UNSAMPLED)
        await world.post("s", b"3")
        times = world.front.counters.append_seconds
        assert ("trace_id", TRACE) in {each[:2] for each in times.exemplars.values()}

    (root,) = traced(story)
    assert (root.name, root.kind) == ("POST /v1/stream/{name}", "server")
    assert root.parent == int(PARENT_ID, 16) and root.remote and root.trace_id == TRACE
    assert root.attributes["http.response.status_code"] == 204
    assert root.attributes["polynya.stream"] == "default/s"
    assert root.attributes["polynya.request_id"] == "r1"


def test_learned_appends_are_sampled_too() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        for number in range(40):
            wire.send(
                request("POST", "/v1/stream/s", b"%d" % number, content_type="application/json")
            )
            assert (await wire.answer()).status == 204

    spans = traced(story, ratio=0.5)
    roots = [span for span in spans if not span.parent]
    assert 8 < len(roots) < 32 and len({span.trace for span in roots}) == len(roots)


def test_errors_of_clients_and_reads_are_traced_by_their_routes() -> None:
    async def story(world: World) -> None:
        await world.ask("GET", "/v1/stream/missing")
        await world.ask("GET", "/v1/stream/s")
        await world.ask("GET", "/livez")
        await world.ask("PATCH", "/v1/stream/s")
        reader = await world.sse("s")
        await reader.chunk()

    spans = traced(story, ratio=1.0)
    found = [(each.name, each.attributes["http.response.status_code"]) for each in spans]
    assert found[:2] == [("GET /v1/stream/{name}", 404), ("GET /v1/stream/{name}", 200)]
    assert found[2:] == [("PATCH /v1/stream/{name}", 405), ("GET /v1/stream/{name}", 200)]
    assert not any(each.error for each in spans)


def test_without_a_tracer_nothing_is_traced() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (await world.post("s", b"1", traceparent=SAMPLED)).status == 204

    play(story)
