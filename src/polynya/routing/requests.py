"""Send requests to other cores and take theirs: directly, or relayed through another node to the
leader of a group that this node cannot reach (docs/decisions/0018). A request that is a part of a
traced one carries its trace."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol

from polynya.base.errors import InvalidMessage, NotLeader
from polynya.base.spans import CLIENT, Span, Tracer, active, within
from polynya.routing import messages
from polynya.routing.send import THROUGH
from polynya.transport.handshake import node_of

TRACE_PROTOCOL = 5  # peer protocol version that introduced TRACED between nodes
Answer = Callable[[bytes | BaseException], None]
Handler = Callable[[bytes, Answer, int], None]
_HEAD = struct.Struct("<HH")  # of PASS_ON: kind, group


class RelayTransport(Protocol):
    """The part of `polynya.transport` that a relay needs."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None: ...

    def protocol(self, core: int) -> int: ...


class ServingTransport(Protocol):
    """The part of `polynya.transport` that takes requests."""

    def on(self, kind: int, handler: Handler) -> None: ...


def span_of(name: str, core_id: int, group: int) -> Span | None:
    """Begin the span of a request to another core, if a traced request is in progress."""
    above = active()
    if above is None:
        return None
    core = core_id % THROUGH
    return above.child(
        name,
        {
            "polynya.group": group,
            "polynya.core": core & 0xFF,
            "polynya.node": node_of(core),  # 0: this one
            "polynya.relayed": core_id >= THROUGH,
        },
        CLIENT,
    )


def end(span: Span, answer: object) -> None:
    """End the span of a request that was answered."""
    span.end(type(answer).__name__ if isinstance(answer, BaseException) else "")


def ask(  # noqa: PLR0913
    transport: RelayTransport,
    core_id: int,
    group: int,
    kind: int,
    body: bytes,
    done: Answer,
    span: Span | None = None,
) -> None:
    """Send a request to a core, or through it to the leader of the group. The span goes along,
    unless that core has an older release."""
    if span is not None and transport.protocol(core_id % THROUGH) >= TRACE_PROTOCOL:
        kind, body = messages.TRACED, messages.traced(span.trace, span.id, kind, body)
    if core_id < THROUGH:
        transport.call_nowait(core_id, kind, body, done)
    else:
        body = _HEAD.pack(kind, group) + body
        transport.call_nowait(core_id - THROUGH, messages.PASS_ON, body, done)


class Relay:
    """The requests that other nodes relay through this core to the leader of a group.

    `leader_at` returns the reachable core of another node that leads a group, or -1. A relayed
    request is not relayed again. Without a leader to call, the response is NotLeader with
    `leader_here`. A traced request gets a span here if this core has a tracer."""

    def __init__(
        self,
        transport: RelayTransport,
        leader_at: Callable[[int], int],
        leader_here: Callable[[int], int],
    ) -> None:
        self.tracer: Tracer | None = None
        self._transport = transport
        self._leader_at, self._leader_here = leader_at, leader_here

    def handle(self, body: bytes, reply: Answer, sender: int) -> None:
        """Forward a request (PASS_ON) to the leader, and its response back."""
        if len(body) < _HEAD.size:
            raise InvalidMessage("a relayed request (PASS_ON) is too short for its head")
        kind, group = _HEAD.unpack_from(body)
        core_id = self._leader_at(group)
        if core_id < 0 or node_of(core_id) == node_of(sender) or kind == messages.PASS_ON:
            reply(NotLeader(self._leader_here(group)))
            return
        body = body[_HEAD.size :]
        if kind == messages.TRACED:
            kind, body, reply = self._traced(core_id, body, reply)
        self._transport.call_nowait(core_id, kind, body, reply)

    def _traced(self, core_id: int, body: bytes, reply: Answer) -> tuple[int, bytes, Answer]:
        """Return the request to the leader below the span of this core, if it has one, and without
        a trace if the leader has an older release."""
        trace, above, kind, bare = messages.untraced(body)
        if self.tracer is not None:
            span = self.tracer.resume("relay", trace, above)
            above, reply = span.id, partial(_end_and_reply, span, reply)
        if self._transport.protocol(core_id) < TRACE_PROTOCOL:
            return kind, bare, reply
        return messages.TRACED, messages.traced(trace, above, kind, bare), reply


def _end_and_reply(span: Span, reply: Answer, answer: bytes | BaseException) -> None:
    end(span, answer)
    reply(answer)


class Received:
    """The requests of other cores by their kinds, also those that are parts of traced ones.

    A traced request has the span `propose` or `answer` here if `tracer` returns this core's."""

    def __init__(self, transport: ServingTransport, tracer: Callable[[], Tracer | None]) -> None:
        self._transport = transport
        self._tracer = tracer
        self._handlers: dict[int, Handler] = {}
        transport.on(messages.TRACED, self._trace)

    def on(self, kind: int, handler: Handler) -> None:
        """Serve requests of a kind."""
        self._transport.on(kind, handler)
        self._handlers[kind] = handler

    def _trace(self, body: bytes, reply: Answer, peer: int) -> None:
        trace, parent, kind, body = messages.untraced(body)
        handler = self._handlers.get(kind)
        if handler is None:
            raise InvalidMessage(f"a traced request is of kind {kind}, which is not served so")
        tracer = self._tracer()
        if tracer is None:
            handler(body, reply, peer)
            return
        name = "propose" if kind in messages.PROPOSALS else "answer"
        span = tracer.resume(name, trace, parent)
        within(span, partial(handler, body, partial(_end_and_reply, span, reply), peer))
