"""One hop more: who does not reach the node that leads a group asks it through another one that does (docs/decisions/0018)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from polynya.base.errors import InvalidMessage, NotLeader
from polynya.service.routing import messages
from polynya.transport.handshake import node_of

THROUGH = 1 << 16  # in the number of a core, as the transport calls it: not to be answered by it, but by who leads the group
PROTOCOL = 3  # between nodes, from which on PASS_ON is known
Answer = Callable[[bytes | BaseException], None]
_HEAD = struct.Struct("<HH")  # kind, group


class Rpc(Protocol):
    """See `polynya.transport`."""

    def call_nowait(self, core: int, kind: int, body: bytes, done: Answer) -> None: ...


def ask(way: Rpc, place: int, group: int, kind: int, body: bytes, done: Answer) -> None:
    """A core, or who leads the group through it."""
    if place < THROUGH:
        way.call_nowait(place, kind, body, done)
    else:
        way.call_nowait(place - THROUGH, messages.PASS_ON, _HEAD.pack(kind, group) + body, done)


def handler_of(way: Rpc, leader_at: Callable[[int], int], leader_of: Callable[[int], int]) -> Callable[[bytes, Answer, int], None]:
    """Answers PASS_ON as who leads does: `leader_at` is the core of another node that is known to lead a group and is there, -1 where there is
    none. What was passed on is not passed on again. Else NotLeader, with the node that leads as far as is known (`leader_of`)."""

    def handle(body: bytes, reply: Answer, sender: int) -> None:
        if len(body) < _HEAD.size:
            raise InvalidMessage("what is to be passed on does not say whereto")
        kind, group = _HEAD.unpack_from(body)
        place = leader_at(group)
        if place < 0 or node_of(place) == node_of(sender) or kind == messages.PASS_ON:
            reply(NotLeader(leader_of(group)))
        else:
            way.call_nowait(place, kind, body[_HEAD.size :], reply)

    return handle
