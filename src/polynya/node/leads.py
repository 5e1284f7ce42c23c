"""Leaderships of one core that go to other nodes: back to those that are to have them, and away before a stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from polynya.raft import Configuration, Refusal

if TYPE_CHECKING:
    from polynya.node.replicated import ReplicatedCore
    from polynya.node.writing import Writes
    from polynya.replica.member import Member

STALLED_SECONDS = 2.5  # a disk that has not taken a write for so long has its leaderships taken away
GIVE_BACK_SECONDS = 1.0  # between two groups that go back to the node that is to lead them …
GIVE_BACK_PART = 32  # … or more at once: so many times until all have gone
GIVE_BACK_AGAIN_SECONDS = 30.0  # … and for the same group, when that did not take it
RELIEVE_SECONDS = 10.0  # for so long a moment is waited for at which nothing is in flight
RELIEVE_AGAIN_SECONDS = 5.0  # until a group goes that did not when it was to
log = logging.getLogger("polynya.leads")


class Leads:
    """Of one core, from its beginning to `close`."""

    def __init__(self, core: ReplicatedCore, writes: Writes) -> None:
        self._core, self._writes = core, writes
        self._loop = asyncio.get_running_loop()
        self._given_back: dict[int, float] = {}  # group -> when it was last tried
        self._strays = set(core.members)  # groups that may be led here although another is to lead them; the rest need no look
        core.on_leadership.append(self._strays.add)
        self._shunned: dict[int, float] = {}  # node -> until when it is given no lead
        self._relieved: dict[int, float] = {}  # group -> since when another is to lead it, or when that was last tried
        self._stalled_at = float("-inf")  # when leaderships last went because of the disk
        self._timer = self._loop.call_later(GIVE_BACK_SECONDS, self._look)

    def placed_anew(self) -> None:
        """Other nodes are to lead some groups."""
        self._strays.update(self._core.led)

    def close(self) -> None:
        self._timer.cancel()

    def change(self, group: int, target: Configuration) -> Refusal | None:
        """Towards these voters, learners and readers, of a group that is led here. A leader that gets no vote hands over first, so that nothing
        in flight loses its answer."""
        core = self._core
        raft = core.members[group].raft
        if raft.configuration.votes(core.node) and core.node not in target.voters:
            stay = [node for node in raft.configuration.voters if node in target.voters and not raft.peers[node].lost]
            if stay:
                core.transfer(group, max(stay, key=lambda node: (node == core.first_of(group), raft.peers[node].match)))
                return Refusal.HANDING_OVER
        refusal = raft.change(target, core.now_ms())
        core.kick()
        return refusal

    def shun(self, node: int, seconds: float) -> None:
        """It is given no lead from here for so long."""
        self._shunned[node] = self._loop.time() + seconds

    def relieve(self, able: Collection[int]) -> int:
        """A few of the led groups go to these nodes: at a moment when nothing in flight loses its answer, if there is one soon. How many did."""
        core, now, gone = self._core, self._loop.time(), 0
        for number in sorted(core.led):
            member = core.members[number]
            raft = member.raft
            whole = [node for node in raft.configuration.voters if node in able and self._has_all(member, node)]
            since = self._relieved.setdefault(number, now)
            if now - since > 2 * RELIEVE_SECONDS:  # of another time
                since = self._relieved[number] = now
            if not whole or now < since or ((member.proposals or member.queue) and now - since < RELIEVE_SECONDS):
                continue
            self._relieved[number] = now + RELIEVE_AGAIN_SECONDS
            core.transfer(number, whole[number % len(whole)])
            gone += 1
            if gone > len(core.members) // GIVE_BACK_PART:
                break
        self._relieved = {number: since for number, since in self._relieved.items() if number in core.led}
        return gone

    def hand_over_all(self) -> None:
        """Each led group goes to the voter that has most of its log and is there."""
        core = self._core
        for number in list(core.led):
            raft = core.members[number].raft
            present = [node for node, peer in raft.peers.items() if not peer.lost and node in raft.configuration.voters]
            if present:
                core.transfer(number, max(present, key=lambda node: raft.peers[node].match))

    def _look(self) -> None:
        self._timer = self._loop.call_later(GIVE_BACK_SECONDS, self._look)
        if self._writes.waiting_seconds < STALLED_SECONDS:
            self._give_back()
        elif self._core.led and self._loop.time() - self._stalled_at >= GIVE_BACK_AGAIN_SECONDS:
            self._stalled_at = self._loop.time()
            log.warning("the disk has not taken a write for %.1f s: others lead what this node led", self._writes.waiting_seconds)
            self.hand_over_all()

    def _give_back(self) -> None:
        """A few groups go to the nodes that are to lead them, if those have all of them and nothing is in flight that would lose its answer."""
        core = self._core
        left = 1 + len(core.members) // GIVE_BACK_PART
        for number in sorted(self._strays):
            first = core.first_of(number)
            if number not in core.led or first == core.node:
                self._strays.discard(number)
                continue
            member = core.members[number]
            if member.proposals or member.queue or not self._has_all(member, first) or self._shunned.get(first, 0.0) > self._loop.time():
                continue
            if number not in self._given_back or self._loop.time() - self._given_back[number] > GIVE_BACK_AGAIN_SECONDS:
                self._given_back[number] = self._loop.time()
                core.transfer(number, first)
                left -= 1
                if not left:
                    break

    @staticmethod
    def _has_all(member: Member, node: int) -> bool:
        """Whether the node is there, with the whole log."""
        peer = member.raft.peers.get(node)
        return peer is not None and not peer.lost and peer.match >= member.raft.log.last
