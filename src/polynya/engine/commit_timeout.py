"""Answer proposals in time when a quorum is reachable but does not write, for example because two
of three disks are full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from polynya.base.errors import OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from polynya.replica.member import Member

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0  # without progress at a quorum while entries are pending
_Reached = tuple[int, ...]
log = logging.getLogger("polynya.commit_timeout")


class CommittingReplicas(Protocol):
    """The interface that this module needs of a core's replicas. `led`: the groups that the core
    leads."""

    @property
    def led(self) -> Collection[int]: ...

    @property
    def members(self) -> Mapping[int, Member]: ...


class CommitTimeouts:
    """The commit timeouts of one core, from creation to `close`."""

    def __init__(
        self,
        replicas: CommittingReplicas,
        give_up: Callable[[Member, OutcomeUnknown], None],
    ) -> None:
        """`give_up` answers the proposals of a member that are in the log."""
        self._replicas, self._answer = replicas, give_up
        self._loop = asyncio.get_running_loop()
        # Groups with pending entries: the progress last seen, and the time since it has not
        # changed.
        self._since: dict[int, tuple[_Reached, float]] = {}
        self.stuck: set[int] = set()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def refusal(self, group: int) -> Unavailable | None:
        """Return the error for a stuck group, which accepts no proposal until a quorum writes
        again; else None."""
        if group not in self.stuck:
            return None
        return Unavailable(
            "a quorum of the group does not write: disks may be full; see 'polynya cluster health'"
        )

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        now, replicas, before = self._loop.time(), self._replicas, self._since
        self._since = {}
        for number in replicas.led:
            member = replicas.members[number]
            if member.group.applied_index == member.raft.log.last:
                continue
            reached = _reached(member)
            known = before.get(number)
            since = self._since[number] = (
                known if known is not None and known[0] == reached else (reached, now)
            )
            if now - since[1] >= ANSWER_SECONDS:
                self._give_up(number, member)
        vain = {
            number for number, (_, since) in self._since.items() if now - since >= ANSWER_SECONDS
        }
        for number in self.stuck - vain:
            log.info(
                "appends are accepted again: a quorum writes, or another node is leader",
                extra={"group": number},
            )
        self.stuck &= vain

    def _give_up(self, number: int, member: Member) -> None:
        """Answer with OutcomeUnknown; the entries stay in the log and may commit."""
        if number not in self.stuck:
            self.stuck.add(number)
            log.warning(
                "a quorum does not write: rejecting appends until it does", extra={"group": number}
            )
        error = (
            "a quorum did not write the append in %g s: disks may be full; the append may or may "
            "not be applied later"
        )
        self._answer(member, OutcomeUnknown(error % ANSWER_SECONDS))


def _reached(member: Member) -> _Reached:
    return (
        member.group.applied_index,
        member.raft.durable,
        *(peer.match for peer in member.raft.peers.values()),
    )
