"""Requests to other cores, of this node and of others, and the kinds that this core serves."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.routing import messages, relay
from polynya.routing.remote_tails import TailTransport

Answer = Callable[[bytes | BaseException], None]


class CoreTransport(TailTransport, Protocol):
    """Messages between the cores of a node; see `polynya.transport`."""

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None: ...

    def protocol(self, core: int) -> int: ...

    def on(self, kind: int, handler: Callable[[bytes, Answer, int], None]) -> None: ...


class CoreRequests:
    """The requests of core `core` of a node with `cores` cores. `transport` is None on a node with
    one core, which sends and gets no requests."""

    def __init__(self, core: int, cores: int, transport: CoreTransport | None) -> None:
        self.core = core
        self.payload: defaultdict[int, int] = defaultdict(int)  # bytes read by each other core
        self._cores = cores
        self._transport = transport
        self._other_nodes: Callable[[], Iterable[int]] = tuple  # their cores

    def join(self, other_nodes: Callable[[], Iterable[int]]) -> None:
        """Join a cluster. `other_nodes` returns the cores of the other reachable nodes."""
        self._other_nodes = other_nodes

    def others(self) -> list[int]:
        """Return the other cores of this node, and those of the other reachable nodes."""
        own = (core for core in range(self._cores) if core != self.core)
        return [*own, *self._other_nodes()]

    async def ask(
        self, place: int, kind: int, question: Any, group: int = 0, *, changes: bool = False
    ) -> Any:
        """Send a request to a core, also of another node (see `Leaders.home_of`), and return the
        answer. `group`: with a relay, the group whose leader gets it. `changes`: the request has an
        effect, so a lost response raises OutcomeUnknown."""
        assert self._transport is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(body: bytes | BaseException) -> None:
            if isinstance(body, OutcomeUnknown) and not changes:
                # the request has no effect, so a retry is safe
                body = Unavailable(f"{body}; retry")
            settle(future, body if isinstance(body, BaseException) else messages.decode(kind, body))

        relay.ask(self._transport, place, group, kind, messages.encode(question), answered)
        return await future

    def serve(
        self, kind: int, shape: Any, answer: Any, handle: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Serve requests of this kind from other cores: `handle` gets a `shape` and returns an
        `answer`. The rooms define their own kinds and serve them on every core."""
        messages.DECODERS[kind] = msgspec.msgpack.Decoder(answer)
        self.register(kind, shape, handle)

    def register(self, kind: int, shape: Any, handle: Callable[[Any], Awaitable[Any]]) -> None:
        """Serve requests of a kind whose answer `messages` knows."""
        if self._transport is None:
            return
        decoder = msgspec.msgpack.Decoder(shape)
        running: set[asyncio.Task[None]] = set()

        async def run(body: bytes, reply: Answer, peer: int) -> None:
            try:
                found = await handle(decoder.decode(body))
                if size := messages.payload_of(found):
                    self.payload[peer] += size
                reply(messages.encode(found))
            except Exception as fault:  # the calling core raises it again
                reply(fault)

        def handler(body: bytes, reply: Answer, peer: int) -> None:
            task = asyncio.get_running_loop().create_task(run(bytes(body), reply, peer))
            running.add(task)
            task.add_done_callback(running.discard)

        self._transport.on(kind, handler)
