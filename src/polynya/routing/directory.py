"""The leader of each group and its epoch, as far as one core knows: from its replicas, from the
other cores of its node, and from other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from polynya.base.errors import InvalidMessage, PolynyaError
from polynya.routing import messages
from polynya.routing.group_locations import CoreAddress, GroupLocations
from polynya.stream.machine import Machine

ELECTION_SECONDS = 1.0  # longer than most elections take
# interval at which the leaders are sent to the other cores again: a message may have been lost
SEND_SECONDS = 1.0
NEVER = 2.0**62
_TIMEOUT_SECONDS = 2.0  # of a question to another node
Leader = tuple[int, int]  # node, leader epoch
AskCore = Callable[[int, int, Any], Awaitable[Any]]
_LEADERS: msgspec.msgpack.Decoder[dict[int, Leader]] = msgspec.msgpack.Decoder(dict[int, Leader])


class LocalReplicas(Protocol):
    """The interface of the replicas of this core."""

    @property
    def led(self) -> Container[int]:
        """The groups that this core leads and may propose for now."""
        ...

    def leader_of(self, group: int) -> int:
        """Return the leader's node number, 0 when it is unknown."""
        ...

    def epoch(self, group: int) -> int:
        """Return the group's leader epoch, 0 without a replica here."""
        ...

    def fit(self, group: int) -> bool:
        """Report whether this core hosts a replica that follows its group, and so learns of a new
        leader first."""
        ...


class Leaders(Protocol):
    """The interface of a directory, in a cluster or on a single node."""

    def leader(self, group: int) -> int:
        """Return the node that leads the group, as far as this core knows; 0: none, or no
        cluster."""
        ...

    def leader_here(self, group: int) -> int:
        """Return the node that leads the group, as the replica of this core knows it; 0: as in
        `leader`."""
        ...

    def reached_leader(self, group: int) -> int:
        """Return the node that leads a group, if this node reaches it; -1: none is known. 0: this
        node, outside a cluster."""
        ...

    def leads(self, group: int) -> bool:
        """Report whether this core may propose for a group that is hosted here."""
        ...

    def hosts(self, group: int) -> bool:
        """Report whether this node is to have a replica of the group."""
        ...

    def follows(self, group: int) -> bool:
        """Report whether the local replica knows the leader and this node reaches it."""
        ...

    def leaderless(self, groups: Iterable[int]) -> list[int]:
        """Return the groups that have no known leader now; empty outside a cluster."""
        ...

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the voters of the group, each with True if this node reaches it; empty outside a
        cluster."""
        ...

    def epoch_of(self, group: int) -> int:
        """Return the leader epoch of a group, as far as this core knows; -1: unknown."""
        ...

    def newest_epoch(self, group: int) -> int:
        """Return an epoch that is no lower than that of any leader that this core's replica has
        heard."""
        ...

    def seems_up(self, node: int) -> bool:
        """Report a node that this one reaches, or that fell silent a moment ago: it still owns
        streams."""
        ...


class SoleDirectory:
    """The directory of a node outside a cluster: each group is led by the core that hosts it.
    `machines` has the local groups."""

    def __init__(self, machines: Mapping[int, Machine]) -> None:
        self._machines = machines

    def leader(self, group: int) -> int:
        return 0

    leader_here = reached_leader = leader

    def leads(self, group: int) -> bool:
        return True

    hosts = follows = seems_up = leads

    def leaderless(self, groups: Iterable[int]) -> list[int]:
        return []

    def voters_of(self, group: int) -> dict[int, bool]:
        return {}

    def epoch_of(self, group: int) -> int:
        # all groups have the same base, and a single node has no terms
        return next((machine.counters.epoch_base for machine in self._machines.values()), -1)

    newest_epoch = epoch_of


class Directory:
    """The directory of one core of a cluster. A replica on this core is the authority on its leader;
    what other cores and nodes report is a hint. `now` returns the loop's time.

    `known` has the last leader of each group, 0 for none, and is changed here alone."""

    def __init__(
        self,
        own: CoreAddress,
        replicas: LocalReplicas,
        locations: GroupLocations,
        now: Callable[[], float],
    ) -> None:
        self.led = replicas.led
        self.leader_here, self.newest_epoch = replicas.leader_of, replicas.epoch
        self.locations = locations
        self.voters_of, self.seems_up = locations.voters_of, locations.seems_up
        self.known = dict.fromkeys(range(own.groups + 1), 0)
        self._node = own.node
        self._replicas = replicas
        self._now = now
        self._epochs: dict[int, int] = {}  # leader epochs, of the last known leaders
        self._leaderless: dict[int, float] = {}  # group of this core → when it lost its leader

    # --- what is known ----------------------------------------------------------------------------

    def leader(self, group: int) -> int:
        return self._node if group in self.led else self.known[group]

    def elsewhere(self, group: int) -> int:
        """Return the leader's node if it is another, known node; else 0."""
        leader = self.leader(group)
        return 0 if leader == self._node else leader

    def reached_leader(self, group: int) -> int:
        leader = self.leader(group)
        return leader if leader and self.locations.is_up(leader) else -1

    def is_reached(self, leader: int) -> bool:
        """Report whether this node reaches a leader; True for 0, no leader."""
        return not leader or self.locations.is_up(leader)

    def leads(self, group: int) -> bool:
        return group in self.led

    def leaderless(self, groups: Iterable[int]) -> list[int]:
        return [group for group in groups if not self.leader(group)]

    def hosts(self, group: int) -> bool:
        return self._node in self.locations.map.replicas_of(group)

    def knows(self, group: int) -> bool:
        """Report whether a replica of this core knows the leader. It must be a member of its group
        and have had a leader within the last election timeout. A replica that was unreachable may
        have been removed from the group."""
        if not self._replicas.fit(group) or not self.hosts(group):
            return False
        return self._now() - self._leaderless.get(group, NEVER) < ELECTION_SECONDS

    def follows(self, group: int) -> bool:
        return self.knows(group) and self.is_reached(self.known[group])

    def epoch_of(self, group: int) -> int:
        return self.last_epoch(group) or -1

    def last_epoch(self, group: int) -> int:
        """Return the epoch of the last leader that this core knows; 0: it has known none."""
        if self.leader_here(group):
            self._epochs[group] = self._replicas.epoch(group)
        return self._epochs.get(group, 0)

    def of_replica(self, group: int) -> Leader | None:
        """Return the leader that a replica of this core knows, and its epoch."""
        leader = self.leader(group) if group in self.known and self.knows(group) else 0
        return (leader, self.last_epoch(group)) if leader else None

    # --- what changes -----------------------------------------------------------------------------

    def replica_changed(self, group: int) -> bool:
        """Record a possible change of the leader or role of a local group. Return True if the
        leader or its epoch is another one."""
        leader = self.leader_here(group)
        if leader:
            self._leaderless.pop(group, None)
        else:
            self._leaderless.setdefault(group, self._now())
        before, epoch = self.known[group], self._epochs.get(group, 0)
        is_new = leader != before and (leader or before == self._node or self.knows(group))
        if not is_new and self.last_epoch(group) == epoch:
            return False
        self.known[group] = leader
        return True

    def reload(self, group: int) -> int:
        """Record the leader that the replica of this core names, and return it. Another node's
        hint may have replaced it, or the replica has learned of it since its last notification."""
        leader = self.known[group] = self.leader_here(group)
        return leader

    def record(self, group: int, leader: int) -> None:
        """Record what a refusal or an accepted proposal tells about the leader; 0: nothing."""
        self.known[group] = leader

    def forget(self, group: int) -> None:
        """Forget the leader of a group whose replica was removed from this core."""
        self.known[group] = 0
        self._leaderless.pop(group, None)

    def accepts(self, group: int, hint: Leader) -> bool:
        """Report whether to adopt the hint of another node: there is no replica here that knows
        better, and the epoch is not old."""
        leader, epoch = hint
        return (
            leader != self._node and not self.knows(group) and epoch >= self._epochs.get(group, 0)
        )

    def differs(self, group: int, hint: Leader) -> bool:
        """Report whether a hint names another leader or epoch."""
        leader, epoch = hint
        return epoch != self._epochs.get(group) or leader != self.known[group]

    def adopt(self, group: int, hint: Leader) -> bool:
        """Record a hint. Return True if it names another leader."""
        leader, epoch = hint
        is_other = leader != self.known[group]
        self.known[group], self._epochs[group] = leader, epoch
        return is_other


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
    """The exchange of known leaders between the cores of a node, and questions to nodes that have a
    replica of a group without one here. A core knows the groups of its replicas first, and the other
    cores have no replicas of these.

    A proposal finds its leader by redirects. Kafka's metadata names leaders and their epochs before
    any proposal, so each core asks about its groups now and then, and tells the other cores.

    `suspect` is called for a group before another leader or epoch is recorded, `retry` after another
    leader was. `core_at(node, group)` returns the core to ask."""

    def __init__(
        self,
        own: CoreAddress,
        directory: Directory,
        transport: LeaderRpc,
        *,
        core_at: Callable[[int, int], int],
        suspect: Callable[[int], None],
        retry: Callable[[int], None],
    ) -> None:
        self._own = own
        self._directory = directory
        self._transport = transport
        self._core_at = core_at
        self._suspect = suspect
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        self._groups: set[int] = set()  # to send
        self._timer: asyncio.TimerHandle | None = None
        self._rounds = 0  # of questions: each asks another replica first
        self._map_epoch = -1
        self._foreign: list[int] = []  # groups of this core, without a replica on this node
        transport.on(messages.LEADERS, self._receive)

    # --- cores of this node -----------------------------------------------------------------------

    def start(self) -> None:
        """Send all leaders to the other cores, now and from time to time."""
        if self._transport.others:
            own = self._own
            self._groups.update(
                group
                for group in range(own.core, own.groups + 1, own.cores)
                if self._directory.knows(group)
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

    def _send(self) -> None:
        """Send leader changes to the other cores of this node, which have no replicas of these
        groups. Unknown leaders are left out."""
        groups, self._groups = self._groups, set()
        if not groups:
            return
        directory = self._directory
        body = messages.encode(
            {group: (directory.known[group], directory.last_epoch(group)) for group in groups}
        )
        for core in self._transport.others:
            self._transport.send(core, messages.LEADERS, body)

    def _receive(
        self, body: bytes, reply: Callable[[bytes | BaseException], None], core: int
    ) -> None:
        leaders = _LEADERS.decode(body)
        if core >= self._own.cores or not leaders.keys() <= self._directory.known.keys():
            raise InvalidMessage(
                "invalid LEADERS message: the sender must be a core of this node, and the groups "
                "must exist"
            )
        self._adopt(leaders)

    # --- other nodes ------------------------------------------------------------------------------

    async def refresh(self, ask: AskCore) -> None:
        """Ask for the leaders of all groups of this core that have no replica on this node."""
        groups_at: dict[int, list[int]] = {}
        for group in self._groups_elsewhere():
            node = self._directory.locations.likely(group, self._rounds)
            if node:
                groups_at.setdefault(self._core_at(node, group), []).append(group)
        self._rounds += 1
        await asyncio.gather(*(self._ask(ask, *each) for each in groups_at.items()))

    async def answer(self, groups: list[int]) -> dict[int, Leader]:
        """Return the leaders, with their epochs, that the replicas of this core know."""
        found = ((group, self._directory.of_replica(group)) for group in groups)
        return {group: leader for group, leader in found if leader is not None}

    def learn(self, leaders: Mapping[int, Leader]) -> None:
        """Take over what another node knows of groups without a replica here, unless it is old."""
        adopted = {
            group: hint for group, hint in leaders.items() if self._directory.accepts(group, hint)
        }
        self._adopt(adopted)
        self._groups.update(adopted)
        self._send()

    def _groups_elsewhere(self) -> list[int]:
        own, known = self._own, self._directory.locations.map
        if known.epoch != self._map_epoch:
            self._map_epoch = known.epoch
            groups = range(own.core, own.groups + 1, own.cores)
            self._foreign = [each for each in groups if own.node not in known.replicas_of(each)]
        return self._foreign

    async def _ask(self, ask: AskCore, core_id: int, groups: list[int]) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                leaders = await ask(core_id, messages.LEADERS_OF, groups)
        except (PolynyaError, TimeoutError):
            return  # the next round asks another replica
        self.learn({each: leaders[each] for each in groups if each in leaders})

    def _adopt(self, leaders: Mapping[int, Leader]) -> None:
        for group, hint in leaders.items():
            if self._directory.differs(group, hint):
                self._suspect(group)
            if self._directory.adopt(group, hint):
                self._retry(group)
