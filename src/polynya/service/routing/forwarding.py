"""Forward proposals to the leader of their group: on this core, on another core of this node, or on
another node.

A proposal that was rejected because the group has no leader, or a different one, is retried. The
retry timeout exceeds an election. A proposal that may have been accepted is never sent again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Protocol

import msgspec

from polynya.base.errors import InvalidMessage, NotLeader, Unavailable
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.engine.append_origins import AppendOrigins
from polynya.replica.log import encode_command
from polynya.service.api import AppendTo
from polynya.service.routing import messages, relay
from polynya.service.routing.bundles import AppendBundle, Bundles
from polynya.service.routing.diskless import DisklessRoutes
from polynya.service.routing.flights import Flights
from polynya.service.routing.group_locations import GroupLocations
from polynya.service.routing.relay import THROUGH
from polynya.stream.commands import Append, Command, Produce
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply

PATIENCE_SECONDS = 2.5  # retry timeout while a group has no leader
HOPS_MAX = 3  # immediate retries of an attempt after redirects; later retries wait for the timer
ELECTION_SECONDS = 1.0  # longer than most elections take
NEVER = 2.0**62
# before the first retries of an attempt: a leadership that is transferred arrives in a few ms
SOON_SECONDS = 0.003
SOON_MAX = 10  # such retries of an attempt
LOOK_SECONDS = 0.05  # retry interval for waiting attempts, even without news
# interval at which the leaders are sent to the other cores again: a message may have been lost
TELL_SECONDS = 1.0
Leader = tuple[int, int]  # node, leader epoch
_WRONG_PROFILE = int(Code.WRONG_PROFILE)
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


class ForwardingRpc(Protocol):
    """Messages to other cores: of this node by number, of other nodes by address. See
    `polynya.transport`."""

    @property
    def others(self) -> list[int]: ...

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None: ...

    def send(self, core: int, kind: int, body: bytes) -> bool: ...

    def on(
        self,
        kind: int,
        handler: Callable[[bytes, Callable[[bytes | BaseException], None], int], None],
    ) -> None: ...

    def protocol(self, core: int) -> int: ...


class CoreAddress(msgspec.Struct, frozen=True):
    """The position of a core: core `core` of `cores`, on node `node`."""

    node: int
    core: int
    cores: int
    groups: int


class _Attempt(msgspec.Struct):
    number: int  # in proposal order
    group: int
    command: Command
    body: bytes  # empty until first sent to another core
    done: Done
    deadline: float
    hops: int = 0  # redirects so far


class Forwarding:
    """The proposal router of one core.

    `here` proposes a command stamped in this pass of the loop to a local group. `stamped` stamps a
    command again that has waited, because log time never goes back. `address(node, core)` returns
    the transport's number of a core, `cores_of(node)` the number of cores.

    A replica on this core is the authority on its leader. Without one, the router asks other nodes,
    with one attempt at a time. A leader that is known but unreachable is called through another
    node, with one attempt or bundle at a time."""

    def __init__(
        self,
        place: CoreAddress,
        leading: LocalReplicas,
        way: ForwardingRpc,
        here: Callable[[int, Command, Done], None],
        *,
        stamped: Callable[[Command], Command],
        address: Callable[[int, int], int],
        group_locations: GroupLocations,
    ) -> None:
        self.place = place
        self.group_locations = group_locations
        self.demand = AppendOrigins(place.node, place.groups)
        self.leader_here = leading.leader_of
        self.forwarded = self.retried = self.refused = 0
        self.diskless = DisklessRoutes(self.propose)
        self.replicas: Mapping[int, Machine] = {}  # of this core, by group
        self._way = way
        self._bundles = Bundles(way, self._landed)
        # by group: the bundle for its known leader in this pass of the loop
        self._open = self._bundles.open
        self._led = leading.led
        self._here = here
        self._stamped = stamped
        self._address = address
        self.cores_of: Callable[[int], int] = lambda node: place.cores
        self._leading = leading
        self._loop = asyncio.get_running_loop()
        self._leaders = dict.fromkeys(range(place.groups + 1), 0)
        self._epochs: dict[int, int] = {}  # leader epochs, of the last known leaders
        self._nodes: dict[int, int] = {}  # target → node
        self._leaderless: dict[int, float] = {}  # group of this core → when it lost its leader
        self._turns: dict[int, int] = {}  # group → unsuccessful attempts to find its leader
        self._waiting: dict[int, deque[_Attempt]] = {}
        self._waiting_bytes = self._attempts = 0
        self._flights = Flights(self._loop.time)
        self._flying = self._flights.counts  # group → attempts in flight
        # Groups led here of which no proposal is in flight or waits. Members are re-judged by
        # `propose`, and leave when the leader may change, or when an attempt sets out or waits.
        self.direct: set[int] = set()
        self._news: set[int] = set()
        self._soon: set[int] = set()  # groups whose waiting attempts are retried soon
        self._looking: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        way.on(messages.LEADERS, self._hear)
        way.on(messages.PASS_ON, relay.handler_of(way, self._leader_at, leading.leader_of))

    def start(self) -> None:
        self._tell_all()

    def close(self) -> None:
        """Reject the waiting attempts."""
        for timer in (self._looking, self._telling):
            if timer is not None:
                timer.cancel()
        for group in list(self._waiting):
            for attempt in self._waiting.pop(group):
                attempt.done(Unavailable("this node is stopping"))

    def knows(self, group: int) -> bool:
        """Report whether a replica of this core knows the leader. It must be a member of its group
        and have had a leader within the last election timeout. A replica that was unreachable may
        have been removed from the group."""
        if not self._leading.fit(
            group
        ) or self.place.node not in self.group_locations.map.replicas_of(group):
            return False
        return self._loop.time() - self._leaderless.get(group, NEVER) < ELECTION_SECONDS

    def follows(self, group: int) -> bool:
        """Report whether the local replica knows the leader and this node reaches it."""
        return self.knows(group) and self._is_reached(self._leaders[group])

    def _is_reached(self, leader: int) -> bool:
        return leader in (0, self.place.node) or self.group_locations.is_there(leader)

    def leads(self, group: int) -> bool:
        """Report whether this core leads the group."""
        return group in self._led

    def leader_of(self, group: int) -> int:
        """Return the node that leads the group, as far as this core knows; 0: none."""
        return self.place.node if group in self._led else self._leaders[group]

    def epoch_of(self, group: int) -> int:
        """Return the epoch of the last leader that this core knows; 0: it has known none."""
        if self._leading.leader_of(group):
            self._epochs[group] = self._leading.epoch(group)
        return self._epochs.get(group, 0)

    def newest(self, group: int) -> int:
        """Return an epoch that is no lower than that of any leader this core's replica has
        heard."""
        return self._leading.epoch(group)

    def elsewhere(self, group: int) -> int:
        """Return the leader's node if it is another, known node; else 0."""
        leader = self.leader_of(group)
        return 0 if leader == self.place.node else leader

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the voters of the group, each with True if this node reaches it."""
        return {node: self.is_up(node) for node in self.group_locations.map.placed_on(group)}

    @property
    def payload(self) -> Mapping[int, int]:
        """The bytes of appends sent to each core of another node."""
        return self._bundles.payload

    def is_up(self, node: int) -> bool:
        """Report whether this node reaches another one, or is it."""
        return node == self.place.node or self.group_locations.is_there(node)

    def places(self) -> Iterator[int]:
        """Yield all cores of the other reachable nodes, as transport numbers."""
        for node in self.group_locations.others():
            yield from (self._address(node, core) for core in range(self.cores_of(node)))

    def core_at(self, node: int, group: int) -> int:
        """Return the core of another node that hosts the group, or would host it, as a transport
        number."""
        return self._address(node, group % self.cores_of(node))

    def to_read(self, group: int, *, local: bool = False) -> list[int]:
        """Return the other cores that may serve reads of the group as transport numbers, best
        first. This node's core is first if it can reach the leader, then near nodes, then the known
        leader."""
        place, core = self.place, group % self.place.cores
        here = core != place.core and place.node in self.group_locations.map.replicas_of(group)
        nodes, leader = self.group_locations.near(group), self._leaders[group]
        if leader not in (0, place.node, *nodes) and self.group_locations.is_there(leader):
            nodes.append(leader)
        others = [self.core_at(node, group) for node in nodes]
        return (
            [core] * here + others
            if local or (leader and self._is_reached(leader))
            else others + [core] * here
        )

    def gone(self, group: int) -> None:
        """Handle the removal of the group's replica from this core."""
        self.direct.discard(group)
        self._flights.doubt(group)
        self._leaders[group] = 0
        self._leaderless.pop(group, None)
        self._news.add(group)
        self._loop.call_soon(self._tell)

    def home(self, group: int, *, through: bool = False) -> int:
        """Return the core that leads the group as a transport number; the own core has its own
        number. `through`: allow a relay (see `polynya.service.routing.relay`). Raise NotLeader when
        no candidate is known."""
        target, _ = self._target_of(group, through=through)
        if target < 0:
            raise NotLeader(0)
        return target

    def propose(self, group: int, command: Command, done: Done) -> None:
        """Propose as `LocalGroups.propose` does, wherever the leader is. `done` gets OutcomeUnknown
        when the request or response is lost."""
        bundle = self._open.get(group)
        if (
            bundle is not None
            and (type(command) is Append or type(command) is Produce)
            and group not in self._waiting
        ):
            self.forwarded += 1
            self._bundles.add(bundle, command, encode_command(command), done)
            return
        if group not in self._led or self._flying.get(group) or group in self._waiting:
            self._send(self._attempt(group, command, done))
            return
        if bundle is None:
            self.direct.add(group)
        self.demand.here[group] += 1
        self._here(group, command, partial(self.answered, group, command, done))

    def is_diskless(self, group: int, name: str) -> bool:
        """Report whether this core sends the appends to a stream to its writer. It learns from its
        replica that a stream is diskless, before the payload crosses to the leader in vain."""
        if name in self.diskless.names:
            return True
        machine = self.replicas.get(group)
        if machine is None or not machine.diskless or group in self._led or group in self._waiting:
            return False
        stream = machine.streams.get(name)
        if stream is None or stream.uid not in machine.diskless or stream.uid in machine.changing:
            return False
        self.diskless.expect(name, settles=bool(self._flying.get(group)))
        return True

    def answered(
        self, group: int, command: Command, done: Done, answer: Reply | BaseException
    ) -> None:
        """Handle the answer to a proposal to a group that this core led."""
        if type(answer) is Reply and answer.code != _WRONG_PROFILE:
            done(answer)
        elif type(answer) is NotLeader:
            self._send(self._attempt(group, command, done))
        else:
            self.diskless.answered(group, command, done, answer)

    def led(self, group: int) -> None:
        """Handle a possible change of the leader or role of a local group."""
        self.direct.discard(group)
        leader = self.leader_here(group)
        if leader:
            self._leaderless.pop(group, None)
        else:
            self._leaderless.setdefault(group, self._loop.time())
        before, epoch = self._leaders[group], self._epochs.get(group, 0)
        is_new = leader != before and (leader or before == self.place.node or self.knows(group))
        if is_new or self.epoch_of(group) != epoch:
            self._flights.doubt(group)
            self._leaders[group] = leader
            if not self._news:
                self._loop.call_soon(self._tell)
            self._news.add(group)
        if group in self._waiting:
            self._loop.call_soon(self._retry, group)

    # --- attempts ---------------------------------------------------------------------------------

    def _attempt(self, group: int, command: Command, done: Done) -> _Attempt:
        self._attempts += 1
        return _Attempt(
            self._attempts, group, command, b"", done, self._loop.time() + PATIENCE_SECONDS
        )

    def _send(self, attempt: _Attempt) -> None:
        target, known = self._free_target(attempt)
        if target < 0 or attempt.group in self._waiting:
            self._wait(attempt)
        else:
            self._go(attempt, target, known=known)

    def _free_target(self, attempt: _Attempt) -> tuple[int, bool]:
        """Return the target that an attempt can go to now, as `_target_of` does; -1: it must
        wait."""
        group = attempt.group
        target, known = self._target_of(group)
        is_local = target == self.place.core
        if not self._flying.get(group) or (
            known and self._flights.may_join(group, target, is_local=is_local)
        ):
            return target, known
        bundle = self._open.get(group) if isinstance(attempt.command, Append | Produce) else None
        # that bundle has not been sent yet
        joins = bundle is not None and bundle.target == target
        return target if joins else -1, known

    def _target_of(self, group: int, *, through: bool = True) -> tuple[int, bool]:
        """Return (target, known): the leader's core as a transport number, or -1 without a
        candidate. `known` is False for a guess."""
        place, core = self.place, group % self.place.cores
        if group in self._led:
            return core, True
        leader = self._leaders[group]
        # the replica has learned of a leader since its last notification
        if not leader and self.knows(group):
            leader = self._leaders[group] = self.leader_here(group)
        if leader == place.node:
            return (core, True) if core != place.core else (-1, False)  # elected, but not ready yet
        if leader and self.group_locations.is_there(leader):
            return self._at(leader, group), True
        between = self._between(group) if leader and through else 0
        if between:
            return between, False
        if self.knows(group):
            return -1, False
        likely = self.group_locations.likely(group, self._turns.get(group, 0))
        return (self._at(likely, group) if likely else -1), False

    def _between(self, group: int) -> int:
        """Return a relay through which the leader may be reached; 0: no reachable node supports
        it."""
        node = self.group_locations.likely(group, self._turns.get(group, 0))
        target = self._at(node, group) if node else 0
        if not target or self._way.protocol(target) < relay.PROTOCOL:
            return 0
        self._nodes[target + THROUGH] = node
        return target + THROUGH

    def _leader_at(self, group: int) -> int:
        """Return the core of another node that leads the group, if it is known and reachable; else
        -1."""
        leader = self.elsewhere(group) if group in self._leaders else 0
        return self._at(leader, group) if leader and self.group_locations.is_there(leader) else -1

    def _at(self, node: int, group: int) -> int:
        target = self.core_at(node, group)
        self._nodes[target] = node
        return target

    def _go(self, attempt: _Attempt, target: int, *, known: bool) -> None:
        group, command = attempt.group, attempt.command
        self.direct.discard(group)
        if target != self.place.core:
            self.forwarded += 1
            attempt.body = attempt.body or encode_command(command)
            if isinstance(command, Append | Produce):
                self._join(
                    attempt,
                    command,
                    self._bundles.bundle(target, group, grows=known or target >= THROUGH),
                )
                return
        self._flights.begin(group, target)

        def answered(answer: Reply | BaseException) -> None:
            self._flights.end(group)
            if type(answer) is NotLeader:
                self._again(attempt, target, answer)
            else:
                self._found(group, target, is_accepted=type(answer) is Reply)
                self.diskless.answered(group, command, attempt.done, answer)

        try:
            if target == self.place.core:
                self._here(group, self._stamped(command), answered)
            else:
                self._bundles.propose(target, group, command, attempt.body, answered)
        except BaseException:  # it was never sent, and later attempts must not wait for it
            self._flights.end(group)
            raise

    def _join(self, attempt: _Attempt, command: Append | Produce, bundle: AppendBundle) -> None:
        """Add an append to its group's bundle. A bundle counts as one attempt in flight."""
        if not bundle.dones:
            self._flights.begin(attempt.group, bundle.target)
            bundle.deadline = attempt.deadline
        bundle.number = max(bundle.number, attempt.number)
        bundle.tried[len(bundle.dones)] = attempt
        self._bundles.add(bundle, command, attempt.body, attempt.done)

    def _landed(self, bundle: AppendBundle, outcomes: list[Reply | BaseException]) -> None:
        group, target = bundle.group, bundle.target
        self._flights.end(group)
        refused = [
            (index, outcome) for index, outcome in enumerate(outcomes) if type(outcome) is NotLeader
        ]
        if len(refused) < len(outcomes):
            is_accepted = any(type(outcome) is Reply for outcome in outcomes)
            self._found(group, target, is_accepted=is_accepted)
        for index, fault in refused:
            # an append without an attempt joined the bundle later and comes after all others
            attempt = bundle.tried.get(index)
            more = (bundle.commands[index], bundle.bodies[index], bundle.dones[index])
            self._again(
                attempt or _Attempt(bundle.number, group, *more, bundle.deadline), target, fault
            )
        # after the refused ones: an answered proposer may propose at once, and then comes after
        for done, command, outcome in zip(bundle.dones, bundle.commands, outcomes, strict=True):
            if type(outcome) is Reply and outcome.code != _WRONG_PROFILE:
                done(outcome)
            elif type(outcome) is not NotLeader:
                self.diskless.answered(group, command, done, outcome)

    def _again(self, attempt: _Attempt, target: int, fault: NotLeader) -> None:
        """Retry an attempt whose target was not the leader."""
        self._flights.doubt(attempt.group)
        if self._loop.time() >= attempt.deadline:
            attempt.done(fault)
            return
        learned = self.learn(attempt.group, target, fault.node)
        self._wait(attempt)
        attempt.hops += 1
        if learned and attempt.hops <= HOPS_MAX:
            self._loop.call_soon(self._retry, attempt.group)
        elif attempt.hops <= SOON_MAX and attempt.group not in self._soon:
            self._soon.add(attempt.group)
            self._loop.call_later(SOON_SECONDS, self._retry_soon, attempt.group)

    def _retry_soon(self, group: int) -> None:
        self._soon.discard(group)
        self._retry(group)

    def _found(self, group: int, target: int, *, is_accepted: bool) -> None:
        """Record that the target did not refuse a proposal, and so is the leader."""
        is_news = is_accepted and self._flights.accept(group, target)
        if (
            not self._leaders[group]
            and target < THROUGH
            and target != self.place.core
            and not self.knows(group)
        ):
            self._leaders[group] = self._nodes.get(target, 0)
            is_news = True
        if is_news and group in self._waiting:
            self._loop.call_soon(self._retry, group)

    def learn(self, group: int, target: int, leader: int) -> bool:
        """Record a redirect from `target`, and return True if it named a new leader. The replicas
        of this core take precedence."""
        self.retried += 1
        if self.knows(group):
            # another node's information may have replaced it
            self._leaders[group] = self.leader_here(group)
            return False
        # this core knows better
        here = leader == self.place.node and group % self.place.cores == self.place.core
        # the relay does not reach the leader either
        vain = target >= THROUGH and leader == self._leaders[group]
        news = bool(leader and leader != self._nodes.get(target) and not here and not vain)
        if news:
            self._leaders[group] = leader
        else:
            self._leaders[group] = 0
            self._turns[group] = self._turns.get(group, 0) + 1
        return news

    def _wait(self, attempt: _Attempt) -> None:
        size = _size(attempt)
        if self._waiting_bytes + size > INFLIGHT_BYTES_PER_CORE:
            self.refused += 1
            attempt.done(Unavailable("too many proposals are waiting for a leader election; retry"))
            return
        self.direct.discard(attempt.group)
        self._waiting_bytes += size
        waiting = self._waiting.setdefault(attempt.group, deque())
        if waiting and waiting[-1].number > attempt.number:  # it was in flight when those arrived
            waiting.insert(bisect_right(waiting, attempt.number, key=_number), attempt)
        else:
            waiting.append(attempt)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _retry(self, group: int) -> None:
        """Send the waiting attempts in order, as far as possible, and reject those past their
        deadline."""
        waiting, now = self._waiting.get(group, deque()), self._loop.time()
        for _ in range(len(waiting)):  # an attempt that returns at once waits for the timer
            attempt = waiting[0]
            target, known = self._free_target(attempt)
            if target < 0 and attempt.deadline > now:
                return
            waiting.popleft()
            self._waiting_bytes -= _size(attempt)
            if target >= 0:
                self._go(attempt, target, known=known)
            else:
                self.refused += 1
                attempt.done(NotLeader(0))
        if not waiting:
            self._waiting.pop(group, None)

    def _look(self) -> None:
        for group in list(self._waiting):
            self._retry(group)
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look) if self._waiting else None

    # --- leaders ----------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        if self._way.others:
            self._news.update(
                group
                for group in range(self.place.core, self.place.groups + 1, self.place.cores)
                if self.knows(group)
            )
            self._tell()
        self._telling = self._loop.call_later(TELL_SECONDS, self._tell_all)

    def _tell(self) -> None:
        """Send leader changes to the other cores of this node, which have no replicas of these
        groups. Unknown leaders are left out."""
        news, self._news = self._news, set()
        if not news:
            return
        body = messages.encode(
            {group: (self._leaders[group], self.epoch_of(group)) for group in news}
        )
        for core in self._way.others:
            self._way.send(core, messages.LEADERS, body)

    def _hear(self, body: bytes, reply: Callable[[bytes | BaseException], None], core: int) -> None:
        told = _LEADERS.decode(body)
        if core >= self.place.cores or not told.keys() <= self._leaders.keys():
            raise InvalidMessage(
                "invalid LEADERS message: the sender must be a core of this node, and the groups "
                "must exist"
            )
        self._take(told)

    def known_leader(self, group: int) -> Leader | None:
        """Return the leader that a replica of this core knows, and its epoch."""
        leader = self.leader_of(group) if group in self._leaders and self.knows(group) else 0
        return (leader, self.epoch_of(group)) if leader else None

    def learn_leaders(self, leaders: Mapping[int, Leader]) -> None:
        """Take over what another node knows of groups without a replica here, unless it is old."""
        news = {
            group: (leader, epoch)
            for group, (leader, epoch) in leaders.items()
            if leader != self.place.node
            and not self.knows(group)
            and epoch >= self._epochs.get(group, 0)
        }
        self._take(news)
        self._news.update(news)
        self._tell()

    def _take(self, leaders: Mapping[int, Leader]) -> None:
        for group, (leader, epoch) in leaders.items():
            if epoch != self._epochs.get(group) or leader != self._leaders[group]:
                self._flights.doubt(group)
            self._epochs[group] = epoch
            if leader != self._leaders[group]:
                self._leaders[group] = leader
                self._retry(group)


class ForwardingAppender:
    """The bound appender of one stream of a group that this core may lead. While the group is
    `direct`, an append goes to `here`, the bound appender of the local stream."""

    __slots__ = ("_forwarding", "_group", "_here")

    def __init__(self, forwarding: Forwarding, group: int, here: AppendTo) -> None:
        self._forwarding = forwarding
        self._group = group
        self._here = here

    def append(self, command: Append, done: Done) -> None:
        """Propose an append to the stream."""
        forwarding, group = self._forwarding, self._group
        if group in forwarding.direct:
            forwarding.demand.here[group] += 1
            self._here(command, partial(forwarding.answered, group, command, done))
        elif forwarding.is_diskless(group, command.name):
            forwarding.diskless.append(group, command, done)
        else:
            forwarding.propose(group, command, done)


def _size(attempt: _Attempt) -> int:
    """Return the approximate bytes that an attempt holds, encoded or not."""
    batch = getattr(attempt.command, "batch", None)
    return len(attempt.body) or 1024 + (len(batch.payload) if batch is not None else 0)


def _number(attempt: _Attempt) -> int:
    return attempt.number
