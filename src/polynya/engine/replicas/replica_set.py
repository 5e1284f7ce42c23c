"""The replicas of one core: the members of Raft groups, as they come and go, and what they know of
their leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.engine.journal_writer import JournalWriter
from polynya.engine.membership import ClusterSettings
from polynya.engine.replicas.proposal_answers import ProposalAnswers
from polynya.engine.replicas.readiness import ReplicaReadiness
from polynya.engine.storage import Storage
from polynya.raft import HardState, Identity, Raft, RestoredMember, Settings, Status
from polynya.replica import Group
from polynya.replica.member import Member
from polynya.stream.machine import Machine


class ReplicaSet:
    """The replicas of one core. `kick` schedules a turn."""

    def __init__(
        self,
        cluster: ClusterSettings,
        storage: Storage,
        writes: JournalWriter,
        answers: ProposalAnswers,
        kick: Callable[[], None],
    ) -> None:
        self.node = cluster.membership.node
        self.first_of = cluster.membership.first_of  # the preferred leader of a group
        self.members: dict[int, Member] = {}
        self.led: dict[int, Machine] = {}  # groups that accept proposals here
        self.ready: list[Raft] = []  # those that may have effects
        # hard states of dropped replicas, which bind later replicas of the same group
        self.departed = storage.departed
        self.on_made: list[Callable[[int], None]] = []
        self.on_dropped: list[Callable[[int], None]] = []
        self._groups = storage.core_replicas.groups
        self._cluster, self._writes, self._answers, self._kick = cluster, writes, answers, kick
        self._readiness = ReplicaReadiness(self.node)
        for number, restored in storage.restored.items():
            self._join(number, restored)

    # --- replicas that come and go ----------------------------------------------------------------

    def has(self, group: int) -> bool:
        """Return True if this core has a replica of the group."""
        return group in self.members

    def add(self, group: int, restored: RestoredMember) -> None:
        """Add a replica that is already recorded on disk."""
        self.departed.pop(group, None)
        self._groups[group] = Group(group, Machine(group, self._cluster.groups))
        self._join(group, restored)
        for hear in self.on_made:
            hear(group)
        self._kick()

    def remove(self, group: int) -> asyncio.Future[bool]:
        """Stop the replica. The result is True once its log is void on disk, False if the disk was
        full."""
        member = self.members.pop(group, None)
        if member is not None:
            raft = member.raft
            self.departed[group] = HardState(raft.term, raft.vote, raft.amnesiac)
            self.led.pop(group, None)
            member.leading = False
            self._answers.empty(member, NotLeader(0), leadership_lost())
            for futures in raft.reads.tokens():
                for future in futures:
                    settle(future, Unavailable("the group has moved to other nodes; retry"))
            del self._groups[group]
            for hear in self.on_dropped:
                hear(group)
        waiter = self._writes.drop(group, self.departed[group])
        self._kick()
        return waiter

    def settings_of(self, number: int) -> Settings:
        """Return Raft settings; they depend on the preferred leader and on the number of groups."""
        return self._cluster.settings(number, self.first_of(number) == self.node, len(self._groups))

    def _join(self, number: int, restored: RestoredMember) -> None:
        raft = Raft(
            Identity(number, self.node, self._cluster.seed()),
            restored,
            self.settings_of(number),
            now_ms=self._cluster.now_ms(),
            ready=self.ready,
        )
        self._readiness.begins(number, restored)
        self.members[number] = Member(self._groups[number], raft, restored.entries)

    # --- leaders and states -----------------------------------------------------------------------

    def is_leader(self, group: int) -> bool:
        """Return True if this core accepts proposals for the group."""
        return group in self.led

    def leader_of(self, group: int) -> int:
        """Return the leader's node: 0 when it is unknown, or when this node was elected and is not
        ready yet."""
        member = self.members.get(group)
        leader = 0 if member is None else member.raft.leader
        return 0 if leader == self.node and group not in self.led else leader

    def term(self, group: int) -> int:
        """Return the group's term, 0 without a replica here."""
        return self.members[group].raft.term if group in self.members else 0

    def epoch(self, group: int) -> int:
        """Return the leader epoch of the group's term, 0 without a replica here. It grows across
        restores too."""
        member = self.members.get(group)
        return 0 if member is None else member.group.machine.counters.epoch_base + member.raft.term

    def fit(self, group: int) -> bool:
        """Return True if the local replica may serve reads: it is a member and has caught up."""
        return group in self.members and self._readiness.of(self.members[group])

    def statuses(self) -> dict[int, Status]:
        """Return the state of each replica, by group."""
        return {number: member.raft.status() for number, member in self.members.items()}


def leadership_lost() -> OutcomeUnknown:
    """Return the answer to a proposal that another leader may commit or remove."""
    return OutcomeUnknown(
        "this node is no longer the group's leader; the append may or may not be applied"
    )
