"""Move the leaderships of one core: to the node with the writers, back to the preferred node, and
to other nodes before a stop.

A core that stops notifies the cores of the other nodes, which then transfer no leadership to it. A
leadership transferred to it would end with it, and the group would need an election.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from polynya.raft import Configuration, Mode, ProposalRefused
from polynya.transport import Reply, node_of

if TYPE_CHECKING:
    from polynya.engine.append_origins import AppendOrigins
    from polynya.engine.journal_writer import JournalWriter
    from polynya.raft import Raft
    from polynya.replica.member import Member

# a disk write in flight for this long makes the node transfer its leaderships
STALLED_SECONDS = 2.5
GIVE_BACK_SECONDS = 1.0  # interval between transfers to preferred leaders
# this fraction of the groups at once, so that all move within this many intervals
GIVE_BACK_PART = 32
GIVE_BACK_AGAIN_SECONDS = 30.0  # before a transfer of the same group is retried
FOLLOW_AT_ONCE = 8  # groups moved to their writers in one interval
FOLLOW_ENTRIES = 16  # a node that lacks more entries has a disk or a network that does not keep up
STAY_SECONDS = 60.0  # without writers here, until a group moves back
PLACED_SECONDS = 300.0  # a leadership stays where an operator or the balancer placed it
# other kinds: health, access, shutdown barrier, cluster view and map, object store
KIND_STOPPING = 1011
# sent to a node that receives a group for its writers; the body is the group number
KIND_FOLLOWS = 1013
STOPPING_SECONDS = 30.0  # a stop takes less time
log = logging.getLogger("polynya.leadership")


class LeadershipTransport(Protocol):
    """The interface that this module needs of a core's transport."""

    def on(self, kind: int, handler: Callable[[bytes, Reply, int], None]) -> None: ...

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None: ...


class LeadingEngine(Protocol):
    """The interface that this module needs of a core's engine. `led`: the groups that the core
    leads."""

    node: int
    on_leadership: list[Callable[[int], None]]

    @property
    def now_ms(self) -> Callable[[], int]: ...

    @property
    def led(self) -> Collection[int]: ...

    @property
    def members(self) -> Mapping[int, Member]: ...

    def kick(self) -> None: ...

    def transfer(self, group: int, node: int) -> ProposalRefused | None: ...


class PreferredLeaders(Protocol):
    """Names the preferred leader of a group, by the newest placement."""

    @property
    def first_of(self) -> Callable[[int], int]: ...


class LeaderPlacement:
    """The leadership transfers of one core, from creation to `close`."""

    def __init__(
        self, core: LeadingEngine, writes: JournalWriter, preferred: PreferredLeaders
    ) -> None:
        self._core, self._writes, self._preferred = core, writes, preferred
        self._loop = asyncio.get_running_loop()
        self._given_back: dict[int, float] = {}  # group -> last attempt
        # groups that may be led here with another preferred leader; the rest need no check
        self._strays = set(core.members)
        self._demand: AppendOrigins | None = None
        self._may_lead: Callable[[int], bool] = lambda node: True
        self._is_held: Callable[[int], bool] = lambda group: False
        self._transport: LeadershipTransport | None = None
        self._core_at: Callable[[int, int], int] = lambda node, group: 0
        self._firsts: dict[
            int, int
        ] = {}  # preferred leaders as of the last cluster map; empty at start
        self._placed: dict[int, float] = {}  # group -> when this node became its preferred leader
        self._stays: dict[int, float] = {}  # group -> until when it stays here for its writers
        self.followed = 0
        core.on_leadership.append(self._led)
        self._shunned: dict[int, float] = {}  # node -> until when it receives no leadership
        self._stopping: dict[int, float] = {}  # node -> until when it counts as stopping
        self._leaves = False
        self._stalled_at = float("-inf")  # last transfer because of a stalled disk
        self._timer = self._loop.call_later(GIVE_BACK_SECONDS, self._look)

    def placed_anew(self, groups: Iterable[int]) -> None:
        """Update the preferred leaders of these groups, some of which may not be here yet."""
        core, known = self._core, self._firsts
        self._strays.update(core.led)
        self._firsts = {number: self._preferred.first_of(number) for number in groups}
        for number, first in self._firsts.items():
            if first == core.node and known.get(number, first) != first:
                self._placed[number] = self._loop.time()

    def follow(
        self,
        demand: AppendOrigins,
        may_lead: Callable[[int], bool],
        core_at: Callable[[int, int], int],
    ) -> None:
        """Start to move groups to the node of their writers, if that node may lead. `core_at` maps
        a node and a group to a core."""
        self._demand, self._may_lead, self._core_at = demand, may_lead, core_at

    def hold(self, is_held: Callable[[int], bool]) -> None:
        """Keep groups here while `is_held` says so: neither preferred leaders nor writers elsewhere
        get them."""
        self._is_held = is_held

    def close(self) -> None:
        self._leaves = False
        self._timer.cancel()

    def listen(self, transport: LeadershipTransport) -> None:
        """Listen for cores of other nodes that stop, or that transfer a group here for its
        writers."""
        self._transport = transport
        transport.on(KIND_STOPPING, self._hear)
        transport.on(KIND_FOLLOWS, self._hear_of_writers)

    def leave(self, transport: LeadershipTransport, cores: Iterable[int]) -> None:
        """Transfer all leaderships before a stop, also those gained later, and notify these cores
        of other nodes of the stop."""
        self._leaves = True
        for core in cores:
            # an older release ignores this
            transport.call_nowait(core, KIND_STOPPING, b"", lambda answer: None)
        self.hand_over_all()

    def found(self, node: int) -> None:
        """Clear the stopping state of a node that is reachable again."""
        self._stopping.pop(node, None)

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        self._stopping[node_of(sender)] = self._loop.time() + STOPPING_SECONDS
        reply(b"")

    def _hear_of_writers(self, body: bytes, reply: Reply, sender: int) -> None:
        """Keep the next leadership of the group here for its writers.

        Leaderships that move by failover are not announced. Clients follow the leader, so they
        would pin the group; after a few failures one node would lead all."""
        number = int.from_bytes(body, "big")
        if number in self._core.members:
            self._stays[number] = self._loop.time() + STAY_SECONDS
        reply(b"")

    def _led(self, number: int) -> None:
        self._strays.add(number)
        if self._leaves:
            self._loop.call_soon(self._leave_again)

    def _leave_again(self) -> None:
        if self._leaves:
            self.hand_over_all()

    def change(self, group: int, target: Configuration) -> ProposalRefused | None:
        """Start a membership change of a group led here. A leader that loses its vote first
        transfers leadership, so that requests in flight are answered."""
        core = self._core
        raft = core.members[group].raft
        if raft.configuration.votes(core.node) and core.node not in target.voters:
            stay = [
                node
                for node in raft.configuration.voters
                if node in target.voters and not raft.peers[node].lost
            ]
            if stay:
                core.transfer(
                    group,
                    max(
                        stay,
                        key=lambda node: (
                            node == self._preferred.first_of(group),
                            raft.peers[node].match,
                        ),
                    ),
                )
                return ProposalRefused.HANDING_OVER
        refusal = raft.change(target, core.now_ms())
        core.kick()
        return refusal

    def shun(self, node: int, seconds: float) -> None:
        """Transfer no leadership to the node for a time."""
        self._shunned[node] = self._loop.time() + seconds

    def next_writer(self, group: int) -> int:
        """Return the node for the next segment of a stream of this group, which is led here: the
        next voter that keeps up, or this node."""
        raft, here = self._core.members[group].raft, self._core.node
        able = [
            node
            for node in sorted(raft.configuration.voters)
            if node != here
            and self._may_lead(node)
            and not self._is_shunned(node)
            and _follows(raft, node)
        ]
        return next((node for node in able if node > here), min(able, default=here))

    def relieve(self, able: Collection[int]) -> int:
        """Transfer a few of the led groups to those of these nodes that keep up, and return how
        many."""
        core, gone = self._core, 0
        for number in sorted(core.led):
            raft = core.members[number].raft
            whole = [
                node for node in raft.configuration.voters if node in able and _follows(raft, node)
            ]
            if whole and gone <= len(core.members) // GIVE_BACK_PART and self._tries(number):
                self._stays.pop(number, None)
                core.transfer(number, whole[number % len(whole)])
                gone += 1
        return gone

    def hand_over_all(self) -> bool:
        """Transfer each led group to the reachable, non-stopping voter with the longest log. Return
        True if any transfer started."""
        core, any_goes = self._core, False
        for number in list(core.led):
            raft = core.members[number].raft
            present = [
                node
                for node, peer in raft.peers.items()
                if not peer.lost and node in raft.configuration.voters
            ]
            able = [node for node in present if not self._is_stopping(node)]
            if able:
                core.transfer(number, max(able, key=lambda node: raft.peers[node].match))
                any_goes = True
        return any_goes

    def _look(self) -> None:
        self._timer = self._loop.call_later(GIVE_BACK_SECONDS, self._look)
        if self._writes.waiting_seconds < STALLED_SECONDS:
            self._follow()
            self._give_back()
        elif self._core.led and self._loop.time() - self._stalled_at >= GIVE_BACK_AGAIN_SECONDS:
            self._stalled_at = self._loop.time()
            log.warning(
                "a disk write has been in flight for %.1f s: transferring leaderships to other "
                "nodes",
                self._writes.waiting_seconds,
            )
            self.hand_over_all()

    def _follow(self) -> None:
        """Move groups to the node that receives nearly all of their appends. Proposals wait for one
        round trip meanwhile."""
        if self._demand is None:
            return
        core, now, left = self._core, self._loop.time(), FOLLOW_AT_ONCE
        for number, (node, count) in sorted(self._demand.look().items()):
            if (
                number not in core.led
                or self._is_held(number)
                or now - self._placed.get(number, float("-inf")) < PLACED_SECONDS
            ):
                continue
            if node == core.node:
                if self._is_to_stay(number):
                    self._stays[number] = now + STAY_SECONDS
            elif (
                left
                and count >= self._demand.many
                and self._may_lead(node)
                and not self._is_shunned(node)
                and _follows(core.members[number].raft, node)
                and self._tries(number)
            ):
                self._stays.pop(number, None)
                self.followed += 1
                left -= 1
                self._say_why(number, node)
                core.transfer(number, node)

    def _say_why(self, number: int, node: int) -> None:
        # an older release ignores this, and keeps any leadership that has its writers there
        if self._transport is not None:
            self._transport.call_nowait(
                self._core_at(node, number),
                KIND_FOLLOWS,
                number.to_bytes(4, "big"),
                lambda answer: None,
            )

    def _tries(self, number: int) -> bool:
        """Return False if the group's last transfer is too recent; else record this attempt."""
        now = self._loop.time()
        if now - self._given_back.get(number, float("-inf")) <= GIVE_BACK_AGAIN_SECONDS:
            return False
        self._given_back[number] = now
        return True

    def _is_shunned(self, node: int) -> bool:
        return self._shunned.get(node, 0.0) > self._loop.time() or self._is_stopping(node)

    def _is_stopping(self, node: int) -> bool:
        return self._stopping.get(node, 0.0) > self._loop.time()

    def _is_to_stay(self, number: int) -> bool:
        return self._stays.get(number, 0.0) > self._loop.time() and self._may_lead(self._core.node)

    def _give_back(self) -> None:
        """Transfer a few groups to their preferred leaders, if those keep up. Requests in flight
        are still answered."""
        core = self._core
        left = 1 + len(core.members) // GIVE_BACK_PART
        for number in sorted(self._strays):
            first = self._preferred.first_of(number)
            if number not in core.led or first == core.node:
                self._strays.discard(number)
                self._stays.pop(number, None)
                continue
            if self._is_to_stay(number) or self._is_held(number):
                continue
            if (
                not self._is_shunned(first)
                and _has_all(core.members[number], first)
                and self._tries(number)
            ):
                core.transfer(number, first)
                left -= 1
                if not left:
                    break


def _follows(raft: Raft, node: int, lacks: int = FOLLOW_ENTRIES) -> bool:
    """Return True if the voter is reachable and lacks at most this many entries of the group's
    log."""
    peer = raft.peers.get(node)
    return (
        peer is not None
        and not peer.lost
        and node in raft.configuration.voters
        and raft.log.last - peer.match <= lacks
    )


def _has_all(member: Member, node: int) -> bool:
    """Return True if the node has the whole log. A busy group may have entries in flight to it;
    that needs a working connection."""
    raft = member.raft
    if not member.proposals and not member.queue and _follows(raft, node, 0):
        return True
    return _follows(raft, node) and raft.peers[node].mode is Mode.REPLICATE
