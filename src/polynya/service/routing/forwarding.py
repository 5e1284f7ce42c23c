"""Proposals on their way to whoever leads their group: on this core, on another core of this node, or on another node.

What is not taken because a group has no leader, or another than was thought, is tried again for a while: an election takes less. What may have
been taken is never sent again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Protocol

import msgspec

from polynya.base.errors import InvalidMessage, NotLeader, Unavailable
from polynya.base.limits import INFLIGHT_BYTES_PER_CORE
from polynya.engine.append_origins import AppendOrigins
from polynya.replica.log import encode_command
from polynya.service.routing import messages, relay
from polynya.service.routing.bundles import AppendBundle, Bundles
from polynya.service.routing.group_locations import GroupLocations
from polynya.service.routing.relay import THROUGH
from polynya.stream.commands import Append, Command
from polynya.stream.replies import Done, Reply

PATIENCE_SECONDS = 2.5  # with a group that has no leader
HOPS_MAX = 3  # so often an attempt goes on at once to whom it was sent; then with the next look
ELECTION_SECONDS = 1.0  # longer than most elections take
NEVER = 2.0**62
LOOK_SECONDS = 0.05  # what waits is tried again so often, news or not
TELL_SECONDS = 1.0  # the other cores are told again who leads so often: a message may have been lost
_LEADERS: msgspec.msgpack.Decoder[dict[int, int]] = msgspec.msgpack.Decoder(dict[int, int])


class LocalReplicas(Protocol):
    """What the replicas of this core offer."""

    @property
    def led(self) -> Container[int]:
        """The groups that this core proposes for, here and now."""
        ...

    def leader_of(self, group: int) -> int:
        """The node, 0 when it is not known."""
        ...

    def fit(self, group: int) -> bool:
        """Whether there is a replica of the group here that follows it, and so knows who leads as soon as anybody."""
        ...


class ForwardingRpc(Protocol):
    """Messages to other cores, of this node by their number, of others by address; see `polynya.transport`."""

    @property
    def others(self) -> list[int]: ...

    def call_nowait(self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]) -> None: ...

    def send(self, core: int, kind: int, body: bytes) -> bool: ...

    def on(self, kind: int, handler: Callable[[bytes, Callable[[bytes | BaseException], None], int], None]) -> None: ...

    def protocol(self, core: int) -> int: ...


class CoreAddress(msgspec.Struct, frozen=True):
    """Where this is: core `core` of `cores`, of node `node`."""

    node: int
    core: int
    cores: int
    groups: int


class _Attempt(msgspec.Struct):
    number: int  # in their order
    group: int
    command: Command
    body: bytes  # empty until it first goes elsewhere
    done: Done
    deadline: float
    hops: int = 0  # places where the group was not led


class Forwarding:
    """Of one core. `here` proposes to the groups of this core what was stamped in this pass of the loop, and `stamped` stamps anew what has
    waited, as log time never goes back (F14); `address(node, core)` is how the transport calls it, `cores_of(node)` how many there are.

    Where the group has a replica on this core, that tells who leads. Else whoever is asked does; one attempt at a time looks for it. A leader
    that is known and cannot be reached is asked through another node, by one attempt or bundle at a time."""

    def __init__(
        self,
        place: CoreAddress,
        leading: LocalReplicas,
        way: ForwardingRpc,
        here: Callable[[int, Command, Done], None],
        *,
        stamped: Callable[[Command], Command],
        address: Callable[[int, int], int],
        whereabouts: GroupLocations,
    ) -> None:
        self.place = place
        self.whereabouts = whereabouts
        self.demand = AppendOrigins(place.node, place.groups)
        self.leader_here = leading.leader_of
        self.forwarded = self.retried = self.refused = 0
        self._way = way
        self._bundles = Bundles(way, self._landed)
        self._open = self._bundles.open  # by group: to who is known to lead it, in this pass of the loop
        self._led = leading.led
        self._here = here
        self._stamped = stamped
        self._address = address
        self.cores_of: Callable[[int], int] = lambda node: place.cores
        self._leading = leading
        self._loop = asyncio.get_running_loop()
        self._leaders = dict.fromkeys(range(place.groups + 1), 0)
        self._nodes: dict[int, int] = {}  # of targets
        self._leaderless: dict[int, float] = {}  # of this core's, and since when
        self._turns: dict[int, int] = {}  # group → how often in vain somebody was asked who may lead it
        self._waiting: dict[int, deque[_Attempt]] = {}
        self._waiting_bytes = self._attempts = 0
        self._flying: dict[int, int] = {}  # group → attempts without an answer …
        self._target: dict[int, int] = {}  # … and where they went: others of the group go elsewhere only after them, to stay in order
        self._news: set[int] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        way.on(messages.LEADERS, self._hear)
        way.on(messages.PASS_ON, relay.handler_of(way, self._leader_at, leading.leader_of))

    def start(self) -> None:
        self._tell_all()

    def close(self) -> None:
        """What waits is refused."""
        for timer in (self._looking, self._telling):
            if timer is not None:
                timer.cancel()
        for group in list(self._waiting):
            for attempt in self._waiting.pop(group):
                attempt.done(Unavailable("this node is stopping"))

    def knows(self, group: int) -> bool:
        """Whether a replica of this core tells who leads: one that belongs to its group, and has not been without a leader for longer than an
        election takes. It may have been put out while it was away."""
        if not self._leading.fit(group) or self.place.node not in self.whereabouts.map.replicas_of(group):
            return False
        return self._loop.time() - self._leaderless.get(group, NEVER) < ELECTION_SECONDS

    def follows(self, group: int) -> bool:
        """As `knows`, and the leader can be asked."""
        return self.knows(group) and self._is_reached(self._leaders[group])

    def _is_reached(self, leader: int) -> bool:
        return leader in (0, self.place.node) or self.whereabouts.is_there(leader)

    def leads(self, group: int) -> bool:
        """Whether this core does."""
        return group in self._led

    def leader_of(self, group: int) -> int:
        """The node that leads the group, as far as is known; 0: nobody."""
        return self.place.node if group in self._led else self._leaders[group]

    def elsewhere(self, group: int) -> int:
        """The node that leads the group, if it is another and known; else 0."""
        leader = self.leader_of(group)
        return 0 if leader == self.place.node else leader

    def voters_of(self, group: int) -> dict[int, bool]:
        """The nodes that have a voice in the group, and whether they are heard."""
        here, there = self.place.node, self.whereabouts.is_there
        return {node: node == here or there(node) for node in self.whereabouts.map.placed_on(group)}

    def places(self) -> Iterator[int]:
        """All cores of the other nodes that are there."""
        for node in self.whereabouts.others():
            yield from (self._address(node, core) for core in range(self.cores_of(node)))

    def core_at(self, node: int, group: int) -> int:
        """The core of another node that has the group, or would have it, as the transport calls it."""
        return self._address(node, group % self.cores_of(node))

    def to_read(self, group: int, *, local: bool = False) -> list[int]:
        """Other cores that may answer reads of the group, as the transport calls them, the best first: of this node (if that is to hear the
        leader), of near ones, and once more who is known to lead."""
        place, core = self.place, group % self.place.cores
        here = core != place.core and place.node in self.whereabouts.map.replicas_of(group)
        nodes, leader = self.whereabouts.near(group), self._leaders[group]
        if leader not in (0, place.node, *nodes) and self.whereabouts.is_there(leader):
            nodes.append(leader)
        others = [self.core_at(node, group) for node in nodes]
        return [core] * here + others if local or (leader and self._is_reached(leader)) else others + [core] * here

    def gone(self, group: int) -> None:
        """The group has no replica on this core any more."""
        self._leaders[group] = 0
        self._leaderless.pop(group, None)
        self._news.add(group)
        self._loop.call_soon(self._tell)

    def home(self, group: int, *, through: bool = False) -> int:
        """Where the group is led, as the transport calls it; the own core by its number; perhaps `through` another (see `passing`). Raises
        NotLeader when there is nobody to ask."""
        target, _ = self._target_of(group, through=through)
        if target < 0:
            raise NotLeader(0)
        return target

    def propose(self, group: int, command: Command, done: Done) -> None:
        """As `LocalGroups.propose`, wherever the group is led. `done` gets OutcomeUnknown when that is lost on the way."""
        bundle = self._open.get(group)
        if bundle is not None and type(command) is Append and group not in self._waiting:
            self.forwarded += 1
            self._bundles.add(bundle, command, encode_command(command), done)
            return
        if group not in self._led or self._flying.get(group) or group in self._waiting:
            self._send(self._attempt(group, command, done))
            return

        def answered(answer: Reply | BaseException) -> None:
            if type(answer) is NotLeader:
                self._send(self._attempt(group, command, done))
            else:
                done(answer)

        self.demand.here[group] += 1
        self._here(group, command, answered)

    def led(self, group: int) -> None:
        """The replicas' news: part or leader of a group of this core may have changed."""
        leader = self.leader_here(group)
        if leader:
            self._leaderless.pop(group, None)
        else:
            self._leaderless.setdefault(group, self._loop.time())
        before = self._leaders[group]
        if leader != before and (leader or before == self.place.node or self.knows(group)):
            self._leaders[group] = leader
            if not self._news:
                self._loop.call_soon(self._tell)
            self._news.add(group)
        if group in self._waiting:
            self._loop.call_soon(self._retry, group)

    # --- attempts --------------------------------------------------------------------------------------------------------------

    def _attempt(self, group: int, command: Command, done: Done) -> _Attempt:
        self._attempts += 1
        return _Attempt(self._attempts, group, command, b"", done, self._loop.time() + PATIENCE_SECONDS)

    def _send(self, attempt: _Attempt) -> None:
        target, known = self._free_target(attempt)
        if target < 0 or attempt.group in self._waiting:
            self._wait(attempt)
        else:
            self._go(attempt, target, known=known)

    def _free_target(self, attempt: _Attempt) -> tuple[int, bool]:
        """Where an attempt can go now, as by `_target_of`; -1: it has to wait."""
        group = attempt.group
        target, known = self._target_of(group)
        if not self._flying.get(group) or (known and self._target[group] == target):
            return target, known
        bundle = self._open.get(group) if type(attempt.command) is Append else None
        joins = bundle is not None and bundle.target == target >= THROUGH  # it has not left yet
        return target if joins else -1, known

    def _target_of(self, group: int, *, through: bool = True) -> tuple[int, bool]:
        """Where the group is led, as the transport calls it; the own core by its number; -1 when there is nobody to ask. And whether that is
        known, and no guess."""
        place, core = self.place, group % self.place.cores
        if group in self._led:
            return core, True
        leader = self._leaders[group]
        if not leader and self.knows(group):  # it may not have when it heard, and another, asked then, was electing
            leader = self._leaders[group] = self.leader_here(group)
        if leader == place.node:
            return (core, True) if core != place.core else (-1, False)  # elected, and not ready yet
        if leader and self.whereabouts.is_there(leader):
            return self._at(leader, group), True
        between = self._between(group) if leader and through else 0
        if between:
            return between, False
        if self.knows(group):
            return -1, False
        likely = self.whereabouts.likely(group, self._turns.get(group, 0))
        return (self._at(likely, group) if likely else -1), False

    def _between(self, group: int) -> int:
        """Through whom the leader may be reached; 0: nobody who is there knows how to."""
        node = self.whereabouts.likely(group, self._turns.get(group, 0))
        target = self._at(node, group) if node else 0
        if not target or self._way.protocol(target) < relay.PROTOCOL:
            return 0
        self._nodes[target + THROUGH] = node
        return target + THROUGH

    def _leader_at(self, group: int) -> int:
        """Of another node, as far as is known and if that is there; else -1."""
        leader = self.elsewhere(group) if group in self._leaders else 0
        return self._at(leader, group) if leader and self.whereabouts.is_there(leader) else -1

    def _at(self, node: int, group: int) -> int:
        target = self.core_at(node, group)
        self._nodes[target] = node
        return target

    def _go(self, attempt: _Attempt, target: int, *, known: bool) -> None:
        group, command = attempt.group, attempt.command
        self._target[group] = target
        if target != self.place.core:
            self.forwarded += 1
            attempt.body = attempt.body or encode_command(command)
            if type(command) is Append:
                self._join(attempt, command, self._bundles.bundle(target, group, grows=known or target >= THROUGH))
                return
        self._flying[group] = self._flying.get(group, 0) + 1

        def answered(answer: Reply | BaseException) -> None:
            self._flying[group] -= 1
            if type(answer) is NotLeader:
                self._again(attempt, target, answer)
            else:
                self._found(group, target)
                attempt.done(answer)

        try:
            if target == self.place.core:
                self._here(group, self._stamped(command), answered)
            else:
                self._bundles.propose(target, group, command, attempt.body, answered)
        except BaseException:  # it never left, and nothing that follows may wait for it
            self._flying[group] -= 1
            raise

    def _join(self, attempt: _Attempt, command: Append, bundle: AppendBundle) -> None:
        """An append goes with those of its group. A bundle flies as one attempt."""
        if not bundle.dones:
            group = attempt.group
            self._flying[group] = self._flying.get(group, 0) + 1
            bundle.deadline = attempt.deadline
        bundle.number = max(bundle.number, attempt.number)
        bundle.tried[len(bundle.dones)] = attempt
        self._bundles.add(bundle, command, attempt.body, attempt.done)

    def _landed(self, bundle: AppendBundle, outcomes: list[Reply | BaseException]) -> None:
        group, target = bundle.group, bundle.target
        self._flying[group] -= 1
        refused: list[tuple[int, NotLeader]] = []
        for index, outcome in enumerate(outcomes):
            if type(outcome) is NotLeader:
                refused.append((index, outcome))
            else:
                bundle.dones[index](outcome)
        if len(refused) < len(outcomes):
            self._found(group, target)
        for index, fault in refused:
            attempt = bundle.tried.get(index)  # one that followed them into the bundle is after all of them
            more = (bundle.commands[index], bundle.bodies[index], bundle.dones[index])
            self._again(attempt or _Attempt(bundle.number, group, *more, bundle.deadline), target, fault)

    def _again(self, attempt: _Attempt, target: int, fault: NotLeader) -> None:
        """The group was not led where the attempt went."""
        if self._loop.time() >= attempt.deadline:
            attempt.done(fault)
            return
        learned = self.learn(attempt.group, target, fault.node)
        self._wait(attempt)
        attempt.hops += 1
        if learned and attempt.hops <= HOPS_MAX:
            self._loop.call_soon(self._retry, attempt.group)

    def _found(self, group: int, target: int) -> None:
        """Whoever was asked has taken it."""
        if not self._leaders[group] and target < THROUGH and target != self.place.core and not self.knows(group):
            self._leaders[group] = self._nodes.get(target, 0)
            if group in self._waiting:
                self._loop.call_soon(self._retry, group)

    def learn(self, group: int, target: int, leader: int) -> bool:
        """Who was asked does not lead, and may know who does. The replicas of this core know their groups better. Whether it is news."""
        self.retried += 1
        if self.knows(group):
            self._leaders[group] = self.leader_here(group)  # others may have been believed before it did
            return False
        here = leader == self.place.node and group % self.place.cores == self.place.core  # which is known better
        vain = target >= THROUGH and leader == self._leaders[group]  # it does not reach it either
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
            attempt.done(Unavailable("too much waits for an election; retry"))
            return
        self._waiting_bytes += size
        waiting = self._waiting.setdefault(attempt.group, deque())
        if waiting and waiting[-1].number > attempt.number:  # it was on its way when those came
            waiting.insert(bisect_right(waiting, attempt.number, key=_number), attempt)
        else:
            waiting.append(attempt)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look)

    def _retry(self, group: int) -> None:
        """Those that wait, in their order, as far as they can go; those whose time is over are refused."""
        waiting, now = self._waiting.get(group, deque()), self._loop.time()
        for _ in range(len(waiting)):  # what comes back at once waits for the next look
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

    # --- who leads -------------------------------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        if self._way.others:
            self._news.update(group for group in range(self.place.core, self.place.groups + 1, self.place.cores) if self.knows(group))
            self._tell()
        self._telling = self._loop.call_later(TELL_SECONDS, self._tell_all)

    def _tell(self) -> None:
        """The other cores of this node have no replicas of these groups. What is not known is not told: they may know better."""
        news, self._news = self._news, set()
        if not news:
            return
        body = messages.encode({group: self._leaders[group] for group in news})
        for core in self._way.others:
            self._way.send(core, messages.LEADERS, body)

    def _hear(self, body: bytes, reply: Callable[[bytes | BaseException], None], core: int) -> None:
        told = _LEADERS.decode(body)
        if core >= self.place.cores or not told.keys() <= self._leaders.keys():
            raise InvalidMessage("only the cores of a node tell each other who leads, and groups that there are")
        for group, leader in told.items():
            if leader != self._leaders[group]:
                self._leaders[group] = leader
                self._retry(group)


def _size(attempt: _Attempt) -> int:
    """About what it holds, encoded or not."""
    batch = getattr(attempt.command, "batch", None)
    return len(attempt.body) or 1024 + (len(batch.payload) if batch is not None else 0)


def _number(attempt: _Attempt) -> int:
    return attempt.number
