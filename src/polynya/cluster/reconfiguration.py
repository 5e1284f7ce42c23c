"""Change a group's members and leader: requested on any core, executed by the group's leader."""

from __future__ import annotations

import msgspec

from polynya.base.errors import NotLeader
from polynya.engine.replicated import ReplicatedEngine
from polynya.raft import Configuration, PeerStatus, ProposalRefused
from polynya.routing.rpc import Rpc

CHANGE = 60  # message kinds between cores
TRANSFER = 61
STATUS = 62


class ChangeRequest(msgspec.Struct, array_like=True, frozen=True):
    group: int
    target: Configuration


class TransferRequest(msgspec.Struct, array_like=True, frozen=True):
    group: int
    node: int


class StatusRequest(msgspec.Struct, array_like=True, frozen=True):
    group: int


class GroupStatus(msgspec.Struct, array_like=True, frozen=True):
    """The state of a group from its leader `node`. `settled`: the configuration is committed and
    not joint. `peers`: the other members."""

    node: int
    term: int
    commit: int
    last: int
    configuration: Configuration
    settled: bool
    peers: dict[int, PeerStatus]


class Reconfiguration:
    """Membership changes and leadership transfers, one instance per core. Each call waits for an
    election. It raises Unavailable, or OutcomeUnknown when the leader was lost with the request.
    All may be retried."""

    def __init__(self, rpc: Rpc, core: ReplicatedEngine) -> None:
        self._rpc, self._core = rpc, core
        rpc.serve(CHANGE, ChangeRequest, int, self._change)
        rpc.serve(TRANSFER, TransferRequest, int, self._transfer)
        rpc.serve(STATUS, StatusRequest, GroupStatus, self._status)

    async def change(self, group: int, target: Configuration) -> ProposalRefused | None:
        """Start a change to these voters, learners and readers. None means started; `status` shows
        when it is settled. A leader without a vote in `target` first transfers its leadership
        (HANDING_OVER)."""
        return _refusal(
            await self._rpc.at_home(group, CHANGE, ChangeRequest(group, target), self._change)
        )

    async def transfer(self, group: int, node: int) -> ProposalRefused | None:
        """Transfer the group's leadership to this node."""
        return _refusal(
            await self._rpc.at_home(group, TRANSFER, TransferRequest(group, node), self._transfer)
        )

    async def status(self, group: int) -> GroupStatus:
        """Return the group's status, linearizable: it held at some moment after the call."""
        found: GroupStatus = await self._rpc.at_home(
            group, STATUS, StatusRequest(group), self._status
        )
        return found

    async def _change(self, asked: ChangeRequest) -> int:
        self._must_lead(asked.group)
        return self._core.leadership.change(asked.group, asked.target) or 0

    async def _transfer(self, asked: TransferRequest) -> int:
        self._must_lead(asked.group)
        if asked.node == self._core.node:
            return 0  # it became the leader since the caller looked
        return self._core.transfer(asked.group, asked.node) or 0

    async def _status(self, asked: StatusRequest) -> GroupStatus:
        self._must_lead(asked.group)
        await self._core.reads.linearize(asked.group)
        self._must_lead(asked.group)
        status = self._core.members[asked.group].raft.status()
        return GroupStatus(
            self._core.node, status.term, status.commit, status.last, status.configuration, status.settled, status.peers
        )  # fmt: skip

    def _must_lead(self, group: int) -> None:
        if not self._core.replicas.is_leader(group):
            raise NotLeader(self._core.replicas.leader_of(group))


def _refusal(number: int) -> ProposalRefused | None:
    return ProposalRefused(number) if number else None
