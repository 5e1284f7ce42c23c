"""The spans of requests on a node with two cores: the commit here or on the way to the other core,
the write to the journal, and the read of what only the object store has."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from front_world import Wire, request
from stories.service import node_story
from worlds.service import Node, name_in

from polynya.base.spans import Span, Tracer
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront
from polynya.objectstore.watched import WatchedStore

HERE, THERE = name_in(2), name_in(1)  # of core 0, of core 1
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def tracer_of(seed: int = 7) -> Tracer:
    numbers = random.Random(seed)
    return Tracer(
        ratio=0.0,
        follows_clients=True,
        queue_max=100,
        now_ns=time.monotonic_ns,
        random=numbers.random,
        bits=numbers.getrandbits,
    )


@asynccontextmanager
async def traced_front(node: Node) -> AsyncIterator[tuple[Wire, Tracer]]:
    """A connection to a front of core 0, which traces."""
    front = HttpFront(node.worlds[0].service, HttpSettings())
    front.context.tracer = tracer = tracer_of()
    listener = socket.create_server(("127.0.0.1", 0))
    await front.start([listener])
    wire = Wire(*await asyncio.open_connection("127.0.0.1", listener.getsockname()[1]))
    try:
        yield wire, tracer
    finally:
        wire.close()
        await front.stop(0.1)


async def spans_of(wire: Wire, tracer: Tracer, method: str, name: str, body: bytes) -> list[Span]:
    """The spans of one request, by their names."""
    headers = {"content_type": "text/plain"} if body else {}
    wire.send(request(method, f"/v1/stream/{name}", body, traceparent=PARENT, **headers))
    assert (await wire.answer()).status in (200, 204)
    return sorted(tracer.take(100), key=lambda span: span.name)


@node_story
async def test_an_append_has_its_commit_and_its_write(node: Node) -> None:
    world = node.worlds[0]
    await world.create(HERE)
    async with traced_front(node) as (wire, tracer):
        root, commit, fsync = await spans_of(wire, tracer, "POST", HERE, b"1")
    assert (commit.name, commit.parent) == ("commit", root.id)
    assert (fsync.name, fsync.parent) == ("fsync", commit.id)
    assert root.began < commit.began < fsync.began < fsync.ended < commit.ended < root.ended
    counters = world.engine.core.counters
    for histogram in (counters.commits, counters.pace.writes):
        assert {each[:2] for each in histogram.exemplars.values()} == {("trace_id", root.trace_id)}


@node_story
async def test_an_append_for_the_other_core_is_forwarded(node: Node) -> None:
    world = node.worlds[0]
    await world.create(THERE)
    there = node.worlds[1].service.proposals
    there.tracer = tracer_of(8)
    async with traced_front(node) as (wire, tracer):
        root, forward = await spans_of(wire, tracer, "POST", THERE, b"1")
        fsync, commit, propose = there.tracer.take(100)
        assert (propose.name, propose.parent) == ("propose", forward.id)
        assert (commit.parent, fsync.parent) == (propose.id, commit.id)
        assert {each.trace_id for each in (propose, commit, fsync)} == {root.trace_id}
        there.tracer = None
        await spans_of(wire, tracer, "POST", THERE, b"2")
    assert (forward.name, forward.kind, forward.parent) == ("forward", "client", root.id)
    assert forward.attributes["polynya.core"] == 1 and forward.attributes["polynya.node"] == 0
    exemplars = world.service.proposals.forward_seconds.exemplars
    assert {each[:2] for each in exemplars.values()} == {("trace_id", root.trace_id)}


@node_story
async def test_a_read_of_what_is_cold_has_the_request_to_the_store(node: Node) -> None:
    world = node.worlds[0]
    await world.create(HERE)
    await world.append(HERE, b"1")
    await world.service.flush("")
    store = WatchedStore(world.store, time.monotonic)
    world.reader._requests._store = store
    async with traced_front(node) as (wire, tracer):
        root, cold, get = await spans_of(wire, tracer, "GET", HERE, b"")
        (again,) = await spans_of(wire, tracer, "GET", HERE, b"")
    assert (cold.name, cold.parent) == ("cold read", root.id)
    assert (get.name, get.parent, get.kind) == ("store get", cold.id, "client")
    assert again.name == root.name, "the second read is served by the cache"
    (exemplar,) = store.usage.seconds["get"].exemplars.values()
    assert exemplar[:2] == ("trace_id", root.trace_id)
