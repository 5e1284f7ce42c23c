"""The placement planner: the next steps to bring groups to their goal, from the map and observed
node states. Pure and deterministic.

Two halves. *Goals*: the voters and preferred leader that each group is to have, as commands for the
map. *Steps*: changes of a group's own configuration towards its goal. Learners come first. Then all
voters change at once by joint consensus, when a majority of both sets is up. Each step is safe
alone and repeatable, so the meta group's next leader can continue from any point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polynya.raft.configuration import Configuration
from polynya.replica import zones
from polynya.replica.placement_goals import PlacementGoals
from polynya.replica.placement_steps import (
    ChangeVoters,
    ClusterObservation,
    ConfirmVoters,
    GroupView,
    RemoveNode,
    Step,
    TransferLeadership,
)
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import NodeState, Placement

READS_AT_ONCE = 8  # groups that a new read replica receives at the same time


def plan(now: ClusterMap, observed: ClusterObservation) -> list[Step]:
    """Return the next steps in a valid order, at most one per group."""
    steps: list[Step] = []
    readers = _Readers(now, observed)
    for group in sorted(now.groups):
        step = _next(now, observed, group, readers)
        if step is not None:
            steps.append(step)
    busy = {step.group for step in steps if isinstance(step, ConfirmVoters | ChangeVoters)}
    steps += PlacementGoals(now, observed, busy).found()
    for number, node in sorted(now.nodes.items()):
        if node.state == NodeState.LEAVING and readers.is_free(number):
            steps.append(RemoveNode(number))
    return steps


def may_have_work(now: ClusterMap) -> bool:
    """Report whether the map alone shows possible work, so that an idle cluster needs no polling.
    The map does not show the groups' own
    configurations: after each change, poll them until `may_rest`."""
    leaving = any(
        NodeState.DRAINING <= node.state < NodeState.REMOVED for node in now.nodes.values()
    )
    if now.balancing or leaving or zones.crowded(now):
        return True
    least, meta = now.wanted(META_GROUP + 1), now.wanted(META_GROUP)
    return any(
        not is_at_rest(each)
        or (len(each.goal) != meta if group == META_GROUP else len(each.goal) < least)
        for group, each in now.groups.items()
    )


def may_rest(now: ClusterMap, observed: ClusterObservation) -> bool:
    """Report whether polling may stop until the map changes; call it after a plan without steps.
    The map alone does not suffice: a change requested under an earlier goal may be in flight or
    complete."""
    return (
        is_read_as_it_should(now, observed)
        and not may_have_work(now)
        and all(
            _is_as_placed(placement, observed.groups[group])
            for group, placement in now.groups.items()
        )
    )


def _is_as_placed(placement: Placement, seen: GroupView) -> bool:
    return seen.settled and (seen.configuration.voters, seen.configuration.learners) == (
        placement.goal,
        (),
    )


def is_read_as_it_should(now: ClusterMap, observed: ClusterObservation) -> bool:
    """Report whether each group has exactly its intended readers: new nodes and read replicas, but
    no removed nodes."""
    seen = observed.groups
    return all(
        group in seen and seen[group].configuration.readers == now.readers_of(group)
        for group in now.groups
    )


def _next(
    now: ClusterMap, observed: ClusterObservation, group: int, readers: _Readers
) -> ChangeVoters | ConfirmVoters | TransferLeadership | None:
    """Return a group's next step towards its goal, or None if it is done or must wait."""
    seen, placement = observed.groups.get(group), now.groups[group]
    if seen is None or not seen.settled:
        return None
    has, goal = seen.configuration, placement.goal
    if has.voters == goal:
        wanted = Configuration(goal, (), (), readers.of(group, has, goal))
        if has != wanted:
            return ChangeVoters(group, seen.leader, wanted)
        if placement.voters != goal:
            return ConfirmVoters(group, goal, placement.epoch)
        return _handing_over(now, observed, seen, group)
    learners = tuple(node for node in goal if node not in has.voters)
    if has.learners != learners:
        still = tuple(node for node in has.readers if node not in learners)
        return ChangeVoters(group, seen.leader, Configuration(has.voters, (), learners, still))
    if not (
        set(learners) <= seen.caught_up
        and _majority(goal, observed.up & seen.caught_up)
        and _majority(has.voters, observed.up)
    ):
        return None
    if seen.leader not in goal:
        staying = [
            node
            for node in has.voters
            if node in goal and node in seen.caught_up and node in observed.up
        ]
        if staying:
            return TransferLeadership(
                group, seen.leader, placement.first if placement.first in staying else staying[0]
            )
    return ChangeVoters(
        group, seen.leader, Configuration(goal, (), (), readers.of(group, has, goal))
    )


def _handing_over(
    now: ClusterMap, observed: ClusterObservation, seen: GroupView, group: int
) -> TransferLeadership | None:
    """Move leadership off a draining node. Other transfers to the preferred leader happen at the
    group, in a quiet moment."""
    first = now.groups[group].first
    node = now.nodes.get(seen.leader)
    if node is None or node.state < NodeState.DRAINING or first == seen.leader:
        return None
    fit = [
        each
        for each in seen.configuration.voters
        if each != seen.leader and each in seen.caught_up and each in observed.up
    ]
    fit = [each for each in fit if now.nodes[each].state < NodeState.DRAINING]
    return (
        TransferLeadership(group, seen.leader, first if first in fit else fit[0]) if fit else None
    )


class _Readers:
    """The intended readers in one plan. A new read replica gets a few groups at a time, and none
    before it is up."""

    def __init__(self, now: ClusterMap, observed: ClusterObservation) -> None:
        self._now, self._observed = now, observed
        self._behind = dict.fromkeys(now.readers, 0)
        for group, seen in observed.groups.items() if now.readers else ():
            for node in seen.configuration.readers if group != META_GROUP else ():
                if node in self._behind and node not in seen.caught_up:
                    self._behind[node] += 1

    def of(self, group: int, has: Configuration, voters: tuple[int, ...]) -> tuple[int, ...]:
        """Return the readers of a group. In the meta group, former voters stay, and a removed node
        stays until it has received its removal."""
        now, up = self._now, self._observed.up
        if group == META_GROUP:
            readers = [node for node in has.readers if node in up and node not in now.members]
            return tuple(sorted({*now.members, *readers} - set(voters)))
        if not now.readers and not has.readers:
            return ()
        stay = {
            node for node in has.readers if node in now.readers or self._is_awaiting_its_share(node)
        }
        for node in sorted(now.readers - stay):
            if node in up and self._behind[node] < READS_AT_ONCE:
                self._behind[node] += 1
                stay.add(node)
        return tuple(sorted(stay - set(voters)))

    def is_free(self, node: int) -> bool:
        """Report whether nothing is placed on the node and no group still has it. After a change of
        goal, a group may have a voter that the map does not name. The meta group's readers, which
        are all nodes, do not count."""
        now = self._now
        return not any(node in now.placed_on(group) for group in now.groups) and all(
            self._is_without(group, node) for group in now.groups
        )

    def _is_without(self, group: int, node: int) -> bool:
        seen = self._observed.groups.get(group)
        if seen is None or not seen.settled:
            return False
        has = seen.configuration
        return (
            node not in (has.readers if group != META_GROUP else ())
            and node not in has.voters
            and node not in has.learners
        )

    def _is_awaiting_its_share(self, node: int) -> bool:
        """Report whether a promoted read replica keeps its data because its groups as a voter are
        not decided yet."""
        record = self._now.nodes.get(node)
        return self._now.balancing and record is not None and record.state == NodeState.ACTIVE


def _majority(voters: tuple[int, ...], there: Iterable[int]) -> bool:
    return len(set(voters) & set(there)) > len(voters) // 2


def is_at_rest(placement: Placement) -> bool:
    """Report whether the group is at its goal."""
    return placement.voters == placement.goal


def moving(now: ClusterMap) -> Mapping[int, Placement]:
    """Return the groups that are moving."""
    return {
        group: placement for group, placement in now.groups.items() if not is_at_rest(placement)
    }
