"""Groups that carry out orders, for tests of controllers. A learner catches up a round after its
creation, a node that is down does not answer, and invariants are checked at each step."""

from __future__ import annotations

from random import Random

from polynya.raft.configuration import Configuration
from polynya.replica import zones
from polynya.replica.placement_goals import ARRIVALS_AT_ONCE, MOVES_AT_ONCE
from polynya.replica.placement_steps import (
    ChangeVoters,
    ClusterObservation,
    ConfirmVoters,
    GroupView,
    MarkBalanced,
    RemoveNode,
    SetVoters,
    Step,
    TransferLeadership,
)
from polynya.replica.planner import moving, plan
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap, born
from polynya.stream.features.placement.commands import (
    GroupPlaced,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    SetBalancing,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code

ROUNDS_MAX = 400


def node(number: int, zone: str = "", cores: int = 0) -> NodeRecord:
    return NodeRecord(number, f"n{number}:1", f"http://n{number}", zone, cores)


def leader_count(placed: ClusterMap, node: int) -> int:
    """Return the number of groups with the node as preferred leader."""
    return sum(placement.first == node for placement in placed.groups.values())


class Toy:
    """Groups that carry out orders. A learner catches up a round after its creation; a down node
    does not answer. `slow`: the share of voter changes that stay joint until after the next
    look."""

    def __init__(
        self, zones: list[str], groups: int = 8, replicas: int = 3, seed: int = 0, slow: float = 0.0
    ) -> None:
        self.random = Random(seed)
        self.slow = slow
        self.machine = Machine(META_GROUP, groups)
        self.machine.apply(
            born([node(number, zone) for number, zone in enumerate(zones, 1)], groups, replicas)
        )
        self.down: set[int] = set()
        self.lost: set[int] = set()
        self.configurations = {
            group: Configuration(self.map.groups[group].voters, (), (), self.map.readers_of(group))
            for group in self.map.groups
        }
        self.caught_up = {group: set(self.map.replicas_of(group)) for group in self.map.groups}
        self.leaders = {group: self.map.first_of(group) for group in self.map.groups}
        self.leaving: dict[
            int, Configuration
        ] = {}  # groups between two majorities, and what they come to

    @property
    def map(self) -> ClusterMap:
        assert self.machine.meta.map is not None
        return self.machine.meta.map

    def apply(self, command: Command) -> None:
        assert self.machine.apply(command).code in (Code.OK, Code.CREATED)

    @property
    def up(self) -> frozenset[int]:
        return frozenset(self.map.nodes) - self.down

    def observe(self) -> ClusterObservation:
        for group, configuration in self.configurations.items():
            there = [
                each
                for each in configuration.members
                if configuration.votes(each) and each in self.up & self.caught_up[group]
            ]
            sides = [side for side in (configuration.voters, configuration.outgoing) if side]
            if self.leaders[group] not in there:
                led = all(len(set(side) & set(there)) > len(side) // 2 for side in sides)
                self.leaders[group] = self.random.choice(there) if led else 0
        seen = {
            group: GroupView(
                self.leaders[group],
                configuration,
                not configuration.joint,
                frozenset(self.caught_up[group] & self.up),
            )
            for group, configuration in self.configurations.items()
            if self.leaders[group]
        }
        return ClusterObservation(self.up, seen, frozenset(self.lost))

    def carry_out(self, step: Step) -> None:
        """Carry out a step as the controller and the groups would, and check its preconditions."""
        match step:
            case SetVoters(group, goal, first, epoch):
                new = set(goal) - set(self.map.placed_on(group))
                assert all(self.map.nodes[each].state == NodeState.ACTIVE for each in new), (
                    "gets nothing new"
                )
                self.apply(PlaceGroup(group, goal, first, epoch))
            case ConfirmVoters(group, voters, epoch):
                assert self.configurations[group].voters == voters
                self.apply(GroupPlaced(group, voters, epoch))
            case ChangeVoters(group, leader, target):
                self._change(group, leader, target)
            case TransferLeadership(group, leader, to):
                assert (
                    leader == self.leaders[group]
                    and to in self.configurations[group].voters
                    and to in self.up
                )
                self.leaders[group] = to
            case RemoveNode(number):
                voting = [
                    group
                    for group, configuration in self.configurations.items()
                    if configuration.votes(number)
                ]
                assert not voting, "nobody counts on a node that goes"
                self.apply(NodeSet(number, NodeState.REMOVED))
            case MarkBalanced():
                self.apply(SetBalancing(False))
        assert len(moving(self.map)) <= MOVES_AT_ONCE

    def _change(self, group: int, leader: int, target: Configuration) -> None:
        before = self.configurations[group]
        assert leader == self.leaders[group]
        if target.voters != before.voters:
            ready = self.caught_up[group] & self.up
            for side in (before.voters, target.voters):
                assert len(set(side) & ready) > len(side) // 2, "both majorities are there"
            assert set(target.voters) - set(before.voters) <= ready
        made = {*target.voters, *target.learners} - set(before.members)
        assert made <= set(self.map.placed_on(group)), "a replica is there because the map says so"
        silent = {number for number, record in self.map.nodes.items() if record.reader}
        assert silent.isdisjoint({*target.voters, *target.learners}), "a read replica never votes"
        came = set(target.readers) - set(before.members)
        assert group == META_GROUP or came <= self.map.readers & self.up, (
            "nothing reads that is not to, or is not there"
        )
        if target.voters != before.voters and self.random.random() < self.slow:
            self.configurations[group] = Configuration(
                target.voters, before.voters, target.learners, target.readers
            )
            self.leaving[group] = target
        else:
            self._arrive(group, target)

    def _arrive(self, group: int, target: Configuration) -> None:
        self.configurations[group] = target
        self.caught_up[group] &= set(target.members)
        if self.leaders[group] not in target.voters:
            self.leaders[group] = 0

    def catch_up(self) -> None:
        for group, configuration in self.configurations.items():
            if self.leaders[group]:
                self.caught_up[group] |= set(configuration.members) & self.up
                target = self.leaving.get(group)
                if target is not None and self.random.random() < 0.5:
                    self._arrive(group, self.leaving.pop(group))

    def round(self, share: float = 1.0) -> list[Step]:
        """`share` of the steps are taken; the others are lost, as when who carries them out
        dies."""
        observed = self.observe()
        steps = plan(self.map, observed)
        assert steps == plan(self.map, observed)
        groups = [
            step.group
            for step in steps
            if isinstance(step, SetVoters | ConfirmVoters | ChangeVoters | TransferLeadership)
        ]
        arriving = [
            sum(each in self.map.learners_of(group) for group in self.map.groups)
            for each in self.map.nodes
        ]
        assert max(arriving) <= ARRIVALS_AT_ONCE
        for step in steps:
            stale = (
                isinstance(step, ChangeVoters | TransferLeadership)
                and step.leader != self.leaders[step.group]
            )
            moved = (
                isinstance(step, ConfirmVoters | SetVoters)
                and step.epoch != self.map.groups[step.group].epoch
            )
            if self.random.random() < share and not stale and not moved:
                self.carry_out(step)
        assert len(groups) - len(set(groups)) <= len(groups) // 2
        self.catch_up()
        return steps

    def settle(self, share: float = 1.0) -> None:
        """Run rounds until there is nothing more to do."""
        for _ in range(ROUNDS_MAX):
            done = not self.round(share) and not self.leaving
            # who has just caught up may be waited for
            if done and not plan(self.map, self.observe()):
                return
        raise AssertionError(f"it does not end: {plan(self.map, self.observe())}")

    def holds(self) -> dict[int, int]:
        return {
            each: sum(each in self.map.groups[group].voters for group in self.map.groups if group)
            for each in self.map.members
        }

    def check_rest(self) -> None:
        """Check after `settle` that every request was fulfilled."""
        for group, placement in self.map.groups.items():
            assert placement.voters == placement.goal == self.configurations[group].voters
            assert set(self.configurations[group].readers) == set(self.map.readers_of(group))
        assert len(self.map.groups[META_GROUP].goal) == self.map.wanted(META_GROUP)
        assert zones.crowded(self.map) == []
        for number, record in self.map.nodes.items():
            assert record.state != NodeState.LEAVING or number in self.lost
            if record.state >= NodeState.DRAINING:
                assert not leader_count(self.map, number) and number not in self.leaders.values()
            if record.state >= NodeState.EMPTYING:
                assert not any(
                    number in configuration.voters for configuration in self.configurations.values()
                )
