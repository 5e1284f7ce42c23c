"""Exchange of known leaders between the cores of a node. A core knows the groups of its replicas
first, and the other cores have no replicas of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.routing import messages
from polynya.routing.group_locations import CoreAddress
from polynya.routing.leader_map import Leader, LeaderMap

# interval at which the leaders are sent to the other cores again: a message may have been lost
SEND_SECONDS = 1.0
_LEADERS: msgspec.msgpack.Decoder[dict[int, Leader]] = msgspec.msgpack.Decoder(dict[int, Leader])


class LeaderRpc(Protocol):
    """Messages to the other cores of this node, by number. See `polynya.transport`."""

    @property
    def others(self) -> list[int]: ...

    def send(self, core: int, kind: int, body: bytes) -> bool: ...

    def on(
        self,
        kind: int,
        handler: Callable[[bytes, Callable[[bytes | BaseException], None], int], None],
    ) -> None: ...


class LeaderExchange:
    """The exchange of one core. `doubt` is called for a group before another leader or epoch is
    recorded, `retry` after another leader was."""

    def __init__(
        self,
        place: CoreAddress,
        leaders: LeaderMap,
        way: LeaderRpc,
        *,
        doubt: Callable[[int], None],
        retry: Callable[[int], None],
    ) -> None:
        self._place = place
        self._leaders = leaders
        self._way = way
        self._doubt = doubt
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        self._groups: set[int] = set()  # to send
        self._timer: asyncio.TimerHandle | None = None
        way.on(messages.LEADERS, self._receive)

    def start(self) -> None:
        """Send all leaders to the other cores, now and from time to time."""
        if self._way.others:
            place = self._place
            self._groups.update(
                group
                for group in range(place.core, place.groups + 1, place.cores)
                if self._leaders.knows(group)
            )
            self._send()
        self._timer = self._loop.call_later(SEND_SECONDS, self.start)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def announce(self, group: int) -> None:
        """Send the leader of a group to the other cores after this pass of the loop."""
        if not self._groups:
            self._loop.call_soon(self._send)
        self._groups.add(group)

    def learn(self, leaders: Mapping[int, Leader]) -> None:
        """Take over what another node knows of groups without a replica here, unless it is old."""
        adopted = {
            group: hint for group, hint in leaders.items() if self._leaders.accepts(group, hint)
        }
        self._adopt(adopted)
        self._groups.update(adopted)
        self._send()

    def _send(self) -> None:
        """Send leader changes to the other cores of this node, which have no replicas of these
        groups. Unknown leaders are left out."""
        groups, self._groups = self._groups, set()
        if not groups:
            return
        leaders = self._leaders
        body = messages.encode(
            {group: (leaders.known[group], leaders.epoch_of(group)) for group in groups}
        )
        for core in self._way.others:
            self._way.send(core, messages.LEADERS, body)

    def _receive(
        self, body: bytes, reply: Callable[[bytes | BaseException], None], core: int
    ) -> None:
        told = _LEADERS.decode(body)
        if core >= self._place.cores or not told.keys() <= self._leaders.known.keys():
            raise InvalidMessage(
                "invalid LEADERS message: the sender must be a core of this node, and the groups "
                "must exist"
            )
        self._adopt(told)

    def _adopt(self, leaders: Mapping[int, Leader]) -> None:
        for group, hint in leaders.items():
            if self._leaders.differs(group, hint):
                self._doubt(group)
            if self._leaders.adopt(group, hint):
                self._retry(group)
