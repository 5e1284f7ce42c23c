"""Relay requests through another node to a group's leader that this node cannot reach
(docs/decisions/0018)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from polynya.base.errors import InvalidMessage, NotLeader
from polynya.routing import messages
from polynya.transport.handshake import node_of

# added to a core's transport number: the core relays the request to the leader of the group
THROUGH = 1 << 16
PROTOCOL = 3  # peer protocol version that introduced PASS_ON
Answer = Callable[[bytes | BaseException], None]
_HEAD = struct.Struct("<HH")  # kind, group


class Rpc(Protocol):
    """The part of `polynya.transport` that a relay needs."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None: ...


def ask(way: Rpc, place: int, group: int, kind: int, body: bytes, done: Answer) -> None:
    """Send a request to a core, or through it to the leader of the group."""
    if place < THROUGH:
        way.call_nowait(place, kind, body, done)
    else:
        way.call_nowait(place - THROUGH, messages.PASS_ON, _HEAD.pack(kind, group) + body, done)


def handler_of(
    way: Rpc, leader_at: Callable[[int], int], leader_of: Callable[[int], int]
) -> Callable[[bytes, Answer, int], None]:
    """Return the handler of PASS_ON, which forwards a request to the leader and returns its
    response.

    `leader_at` returns the reachable core of another node that leads a group, or -1. A relayed
    request is not relayed again. Without a leader to call, the response is NotLeader with
    `leader_of`."""

    def handle(body: bytes, reply: Answer, sender: int) -> None:
        if len(body) < _HEAD.size:
            raise InvalidMessage("a relayed request (PASS_ON) is too short for its head")
        kind, group = _HEAD.unpack_from(body)
        place = leader_at(group)
        if place < 0 or node_of(place) == node_of(sender) or kind == messages.PASS_ON:
            reply(NotLeader(leader_of(group)))
        else:
            way.call_nowait(place, kind, body[_HEAD.size :], reply)

    return handle
