"""What is to be done next so that the groups are where they should be: from the map and what is seen of the nodes, pure and deterministic.

Two halves. *Goals*: which voters each group is to have and who is to lead it, as commands for the map. *Steps*: what brings a group's own
configuration nearer to its goal: learners first, then all voters at once by joint consensus, when a majority of both is there. Each step is safe on
its own and repeatable, so that whoever leads the meta group next goes on from wherever this stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from polynya.raft.configuration import Configuration
from polynya.replica import zones
from polynya.stream.commands import NodeRecord, NodeState, Placement
from polynya.stream.placement import META_GROUP, ClusterMap

MOVES_AT_ONCE = 4  # groups whose voters change at the same time
ARRIVALS_AT_ONCE = 2  # of them to the same node
LEADS_AT_ONCE = 8  # passed on for the sake of balance in one plan
READS_AT_ONCE = 8  # groups that a new read replica learns at the same time


class GroupView(msgspec.Struct, frozen=True):
    """A group, as its leader says. `settled`: its configuration is committed, and not a joint one."""

    leader: int
    configuration: Configuration
    settled: bool
    caught_up: frozenset[int]  # the leader, and the members that have all but the latest of its log


class ClusterObservation(msgspec.Struct, frozen=True):
    """What is seen now. `up`: the nodes that answer; `lost`: those that have not for so long that they are given up. Groups that nobody leads
    are left out."""

    up: frozenset[int]
    groups: dict[int, GroupView]
    lost: frozenset[int] = frozenset()


class SetVoters(msgspec.Struct, frozen=True):
    """Of the map: other voters to be, or another first."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int


class ConfirmVoters(msgspec.Struct, frozen=True):
    """Of the map: the group has these voters."""

    group: int
    voters: tuple[int, ...]
    epoch: int


class ChangeVoters(msgspec.Struct, frozen=True):
    """At the group's leader."""

    group: int
    leader: int
    configuration: Configuration


class TransferLeadership(msgspec.Struct, frozen=True):
    """At the group's leader."""

    group: int
    leader: int
    to: int


class RemoveNode(msgspec.Struct, frozen=True):
    """Of the map: the node has nothing any more, and goes."""

    node: int


class MarkBalanced(msgspec.Struct, frozen=True):
    """Of the map: replicas and leads are even."""


Step = SetVoters | ConfirmVoters | ChangeVoters | TransferLeadership | RemoveNode | MarkBalanced


def plan(now: ClusterMap, observed: ClusterObservation) -> list[Step]:
    """The next steps, in an order in which they may be taken, at most one for a group."""
    steps: list[Step] = []
    readers = _Readers(now, observed)
    for group in sorted(now.groups):
        step = _next(now, observed, group, readers)
        if step is not None:
            steps.append(step)
    busy = {step.group for step in steps if isinstance(step, ConfirmVoters | ChangeVoters)}
    steps += _Goals(now, observed, busy).found()
    for number, node in sorted(now.nodes.items()):
        if node.state == NodeState.LEAVING and readers.is_free(number):
            steps.append(RemoveNode(number))
    return steps


def may_have_work(now: ClusterMap) -> bool:
    """Whether `plan` could find anything, by the map alone: so that nobody has to be asked while nothing is to do. What the groups are the map does not
    show: after each change it is looked at until they `may_rest`."""
    leaving = any(NodeState.DRAINING <= node.state < NodeState.REMOVED for node in now.nodes.values())
    if now.balancing or leaving or zones.crowded(now):
        return True
    least, meta = now.wanted(META_GROUP + 1), now.wanted(META_GROUP)
    return any(
        not is_at_rest(each) or (len(each.goal) != meta if group == META_GROUP else len(each.goal) < least)
        for group, each in now.groups.items()
    )


def may_rest(now: ClusterMap, observed: ClusterObservation) -> bool:
    """Whether nobody has to be asked again before the map changes, when there was no step. The map alone does not say it: a change that was asked for
    under an earlier goal may have arrived since, or be on its way."""
    return (
        is_read_as_it_should(now, observed)
        and not may_have_work(now)
        and all(_is_as_placed(placement, observed.groups[group]) for group, placement in now.groups.items())
    )


def _is_as_placed(placement: Placement, seen: GroupView) -> bool:
    return seen.settled and (seen.configuration.voters, seen.configuration.learners) == (placement.goal, ())


def is_read_as_it_should(now: ClusterMap, observed: ClusterObservation) -> bool:
    """Whether each group has the readers that it is to have: new nodes and read replicas, none that was removed."""
    seen = observed.groups
    return all(group in seen and seen[group].configuration.readers == now.readers_of(group) for group in now.groups)


# --- steps -------------------------------------------------------------------------------------------------------------------------


def _next(
    now: ClusterMap, observed: ClusterObservation, group: int, readers: _Readers
) -> ChangeVoters | ConfirmVoters | TransferLeadership | None:
    """The next step of a group towards its goal; None when it is there, or something has to be waited for."""
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
    if not (set(learners) <= seen.caught_up and _majority(goal, observed.up & seen.caught_up) and _majority(has.voters, observed.up)):
        return None
    if seen.leader not in goal:
        staying = [node for node in has.voters if node in goal and node in seen.caught_up and node in observed.up]
        if staying:
            return TransferLeadership(group, seen.leader, placement.first if placement.first in staying else staying[0])
    return ChangeVoters(group, seen.leader, Configuration(goal, (), (), readers.of(group, has, goal)))


def _handing_over(now: ClusterMap, observed: ClusterObservation, seen: GroupView, group: int) -> TransferLeadership | None:
    """A leader that should not lead. Who is to lead and is fit to gets the lead by itself, in a quiet moment."""
    first = now.groups[group].first
    node = now.nodes.get(seen.leader)
    if node is None or node.state < NodeState.DRAINING or first == seen.leader:
        return None
    fit = [each for each in seen.configuration.voters if each != seen.leader and each in seen.caught_up and each in observed.up]
    fit = [each for each in fit if now.nodes[each].state < NodeState.DRAINING]
    return TransferLeadership(group, seen.leader, first if first in fit else fit[0]) if fit else None


class _Readers:
    """Of one plan: who is to read without a vote. A read replica gets a few groups at a time, and none before it is there."""

    def __init__(self, now: ClusterMap, observed: ClusterObservation) -> None:
        self._now, self._observed = now, observed
        self._behind = dict.fromkeys(now.readers, 0)
        for group, seen in observed.groups.items() if now.readers else ():
            for node in seen.configuration.readers if group != META_GROUP else ():
                if node in self._behind and node not in seen.caught_up:
                    self._behind[node] += 1

    def of(self, group: int, has: Configuration, voters: tuple[int, ...]) -> tuple[int, ...]:
        """Of the meta group: who votes no more stays, and a node that was removed hears of it before it is left alone."""
        now, up = self._now, self._observed.up
        if group == META_GROUP:
            told = [node for node in has.readers if node in up and node not in now.members]
            return tuple(sorted({*now.members, *told} - set(voters)))
        if not now.readers and not has.readers:
            return ()
        stay = {node for node in has.readers if node in now.readers or self._is_awaiting_its_share(node)}
        for node in sorted(now.readers - stay):
            if node in up and self._behind[node] < READS_AT_ONCE:
                self._behind[node] += 1
                stay.add(node)
        return tuple(sorted(stay - set(voters)))

    def is_free(self, node: int) -> bool:
        """Whether nothing is placed on it, and no group has it any more: where a goal has changed on the way to it, the map does not name who has
        got a vote there. The meta group's readers are all nodes."""
        now = self._now
        return not any(node in now.placed_on(group) for group in now.groups) and all(self._is_without(group, node) for group in now.groups)

    def _is_without(self, group: int, node: int) -> bool:
        seen = self._observed.groups.get(group)
        if seen is None or not seen.settled:
            return False
        has = seen.configuration
        return node not in (has.readers if group != META_GROUP else ()) and node not in has.voters and node not in has.learners

    def _is_awaiting_its_share(self, node: int) -> bool:
        """A read replica that was promoted keeps what it has until it is known which groups it votes in."""
        record = self._now.nodes.get(node)
        return self._now.balancing and record is not None and record.state == NodeState.ACTIVE


def _majority(voters: tuple[int, ...], there: Iterable[int]) -> bool:
    return len(set(voters) & set(there)) > len(voters) // 2


# --- goals -------------------------------------------------------------------------------------------------------------------------


class _Goals:
    """Of one plan: the placements as they become."""

    def __init__(self, now: ClusterMap, observed: ClusterObservation, busy: set[int]) -> None:
        self.now, self.observed, self.busy = now, observed, busy
        self.goals = {group: set(placement.goal) for group, placement in now.groups.items()}
        self.firsts = {group: placement.first for group, placement in now.groups.items()}
        self.moving = {group for group, placement in now.groups.items() if placement.goal != placement.voters}
        self.ordered = sorted(now.groups)
        self.wanted = {group: now.wanted(group) for group in self.ordered[:2]}  # of the meta group, and of all others
        self.zoned = any(node.zone for node in now.nodes.values())
        self.crowded = set(zones.crowded(now))
        self.held, self.led = dict.fromkeys(now.nodes, 0), dict.fromkeys(now.nodes, 0)  # replicas but for the meta group's, and leads
        for group, placement in now.groups.items():
            self.led[placement.first] = self.led.get(placement.first, 0) + 1
            for node in placement.goal if group != META_GROUP else ():
                self.held[node] = self.held.get(node, 0) + 1
        self.bad = {number for number in now.nodes if self._is_bad(number)}
        self.arrivals = dict.fromkeys(now.nodes, 0)
        for group in self.moving:
            for node in now.learners_of(group):
                self.arrivals[node] = self.arrivals.get(node, 0) + 1

    def found(self) -> list[Step]:
        for group in self.ordered:
            seen = self.observed.groups.get(group)
            if seen is not None and group not in self.busy:
                if seen.settled:  # else what it comes to is its goal of now
                    self._mend(group)
                self._mend_first(group)
        settled = not self.moving and not self.busy
        for group in () if self.now.balancing else self.ordered:
            if group in self.crowded and self._is_whole(group) and self._may_move(group):
                self._spread(group)
        balance = self.now.balancing and all(map(self._is_whole, self.ordered))
        if balance:
            self._balance()
        steps: list[Step] = [
            SetVoters(group, goal, self.firsts[group], placement.epoch)
            for group, placement in sorted(self.now.groups.items())
            if (goal := tuple(sorted(self.goals[group]))) != placement.goal or self.firsts[group] != placement.first
        ]
        awaited = any(not self.now.nodes[number].cores and number not in self.observed.up for number in self.now.active)
        if balance and settled and not steps and not awaited and len(self.observed.groups) == len(self.now.groups):
            steps.append(MarkBalanced())  # a node that was added and never seen is waited for: it is to have its share
        return steps

    # What has to be.

    def _mend(self, group: int) -> None:
        """Nodes that are to hold nothing are replaced, missing voters are found, and the meta group's are never of an even number above two."""
        goal, wanted = self.goals[group], self._wanted(group)
        leaving = [] if self.bad.isdisjoint(goal) else sorted(self.bad & goal)
        surplus = group == META_GROUP and len(goal) > wanted
        if not leaving and not surplus and len(goal) >= wanted:
            return
        if group not in self.moving and len(self.moving) >= MOVES_AT_ONCE:
            return
        found = set(goal)
        for node in leaving:
            heir = self._heir(node, found)
            if heir:
                found = (found - {node}) | {heir}
        for node in [node for node in leaving if node in found]:
            if len(found) > wanted:
                found.discard(node)
        while surplus and len(found) > wanted:
            found.discard(self._dispensable(group, found))
        while len(found) < wanted and (more := self._best(found)):
            found.add(more)
        if len(found) < wanted and not leaving:
            return  # all or none: two voters of three are no better than one
        if found != goal:
            self._set(group, found)
            for heir in sorted(found - goal):
                self._lead_by(group, heir)

    def _lead_by(self, group: int, heir: int) -> None:
        """Who takes over from another node gets its share of leads with the groups: that node's have gone to others when it went."""
        first, record, other = self.firsts[group], self.now.nodes[heir], self.now.nodes.get(self.firsts[group])
        if record.replaces and other and _uneven(self._leads(first), _weight(other), self._leads(heir), _weight(record)):
            self._set_first(group, heir)

    def _heir(self, node: int, found: set[int]) -> int:
        """The node that takes over from this one; 0 when there is none."""
        for number, record in sorted(self.now.nodes.items()):
            if record.replaces == node and number not in found and self._may_get(record):
                return number
        if any(record.replaces == node and record.state == NodeState.ACTIVE for record in self.now.nodes.values()):
            return 0  # it comes, or has no room at the moment
        return self._best(found - {node})

    def _best(self, found: set[int]) -> int:
        """The node that gets a replica beside these; 0 when none can."""
        able = [record for number, record in self.now.nodes.items() if number not in found and self._may_get(record)]
        has = zones.tally(self.now.nodes, found)
        best = min(able, key=lambda each: (has[zones.zone_of(each)], (2 * self._holds(each.id) + 1) / _weight(each), each.id), default=None)
        return 0 if best is None else best.id

    def _mend_first(self, group: int) -> None:
        first, goal = self.firsts[group], self.goals[group]
        record = self.now.nodes.get(first)
        if first in goal and record is not None and record.state < NodeState.DRAINING and first not in self.observed.lost:
            return
        records = [self.now.nodes[node] for node in goal]
        fit = [record for record in records if record.state < NodeState.DRAINING]
        if not fit and first in goal:
            return  # somebody has to
        up = self.observed.up
        best = min(
            fit or records, key=lambda each: (each.id not in up, each.state, (2 * self._leads(each.id) + 1) / _weight(each), each.id)
        )
        self._set_first(group, best.id)

    # What should be.

    def _is_whole(self, group: int) -> bool:
        """Nothing of it has to be mended: zones and balance come after."""
        goal = self.goals[group]
        return len(goal) >= self._wanted(group) and self.bad.isdisjoint(goal)

    def _balance(self) -> None:
        for group in self.ordered:
            if self._may_move(group) and (self.zoned or len(self.goals[group]) > self._wanted(group)):
                self._shrink(group)
                self._spread(group)
        while len(self.moving) < MOVES_AT_ONCE and self._shift():
            pass
        for _ in range(LEADS_AT_ONCE):
            if not self._shift_lead():
                break

    def _may_move(self, group: int) -> bool:
        return group in self.observed.groups and group not in self.busy and group not in self.moving and len(self.moving) < MOVES_AT_ONCE

    def _shrink(self, group: int) -> None:
        """More voters than are wanted."""
        goal = set(self.goals[group])
        while len(goal) > self._wanted(group):
            goal.discard(self._dispensable(group, goal))
        if goal != self.goals[group]:
            self._set(group, goal)
            self._mend_first(group)

    def _dispensable(self, group: int, goal: set[int]) -> int:
        """Of these voters the one that is done without first."""
        up = self.observed.up
        return max(
            goal, key=lambda node: (node not in up, self._zone_mates(node, goal), self._load(node), node != self.firsts[group], node)
        )

    def _spread(self, group: int) -> None:
        """A zone that has more replicas than others gives one to a zone that has at least two less."""
        goal = self.goals[group]
        able = [number for number, record in self.now.nodes.items() if self._may_get(record)]
        mates, targets = zones.better(self.now.nodes, goal, able)
        if targets and self._may_move(group):
            going = max(mates, key=lambda node: (node not in self.observed.up, self._load(node), node != self.firsts[group], node))
            has = zones.tally(self.now.nodes, goal)
            coming = min(targets, key=lambda node: (has[zones.zone_of(self.now.nodes[node])], self._load(node), node))
            self._set(group, (goal - {going}) | {coming})
            self._mend_first(group)

    def _shift(self) -> bool:
        """One replica from a node that has too many to one that has too few; False when there is none."""
        numbers = [number for number, record in sorted(self.now.nodes.items()) if record.state != NodeState.REMOVED and not record.reader]
        pairs = [(one, two) for one in numbers for two in numbers if one != two and self._may_get(self.now.nodes[two])]
        for one, two in sorted(pairs, key=lambda pair: self._load(pair[1]) - self._load(pair[0])):
            if not _uneven(self._holds(one), _weight(self.now.nodes[one]), self._holds(two), _weight(self.now.nodes[two])):
                continue
            for group in reversed(self.ordered):
                goal = self.goals[group]
                if group == META_GROUP or one not in goal or two in goal or not self._may_move(group):
                    continue
                after = (goal - {one}) | {two}
                if self._zone_mates(two, after) <= self._zone_mates(one, goal):
                    self._set(group, after)
                    self._mend_first(group)
                    return True
        return False

    def _shift_lead(self) -> bool:
        """Leads are passed on from a node with too many, over others if need be, to one with too few; False when all is even."""
        fit = sorted(self.observed.up.intersection(self.now.active))
        for few in sorted(fit, key=lambda node: (self._leads(node) / _weight(self.now.nodes[node]), node)):
            way = self._way_to(few, fit)
            if way:
                for group, node in way:
                    self._set_first(group, node)
                return True
        return False

    def _way_to(self, few: int, fit: list[int]) -> list[tuple[int, int]]:
        """Changes of firsts, each of another group, that take one lead to `few` from a node that has too many; shortest first."""
        ways: dict[int, list[tuple[int, int]]] = {few: []}
        queue = [few]
        while queue:
            node = queue.pop(0)
            for group in self.ordered:
                first = self.firsts[group]
                if first in ways or first not in fit or node not in self.goals[group] or group in self.moving or group in self.busy:
                    continue
                ways[first] = [(group, node), *ways[node]]
                if _uneven(self._leads(first), _weight(self.now.nodes[first]), self._leads(few), _weight(self.now.nodes[few])):
                    return ways[first]
                queue.append(first)
        return []

    # Looking.

    def _set(self, group: int, goal: set[int]) -> None:
        for node in goal - self.goals[group] - set(self.now.groups[group].voters):
            self.arrivals[node] += 1
        if group != META_GROUP:
            for node in self.goals[group]:
                self.held[node] -= 1
            for node in goal:
                self.held[node] += 1
        self.goals[group] = goal
        self.moving.add(group)

    def _set_first(self, group: int, node: int) -> None:
        self.led[self.firsts[group]] -= 1
        self.led[node] += 1
        self.firsts[group] = node

    def _wanted(self, group: int) -> int:
        """Voters."""
        return self.wanted[self.ordered[0] if group == self.ordered[0] else self.ordered[1]]

    def _is_bad(self, node: int) -> bool:
        record = self.now.nodes.get(node)
        return record is None or record.state >= NodeState.EMPTYING or node in self.observed.lost

    def _may_get(self, record: NodeRecord) -> bool:
        ready = record.state == NodeState.ACTIVE and not record.reader and record.id in self.observed.up
        return ready and self.arrivals[record.id] < ARRIVALS_AT_ONCE

    def _holds(self, node: int) -> int:
        return self.held[node]

    def _load(self, node: int) -> float:
        return self._holds(node) / _weight(self.now.nodes[node])

    def _leads(self, node: int) -> int:
        return self.led[node]

    def _zone_mates(self, node: int, goal: Iterable[int]) -> int:
        """How many others of these are in its zone."""
        return zones.mates(self.now.nodes, node, goal)


def _weight(record: NodeRecord) -> int:
    return max(record.cores, 1)


def _uneven(much: int, much_weight: int, few: int, few_weight: int) -> bool:
    """Whether one less here and one more there is more even. The sum of squares by weight falls with each such move: they come to an end."""
    return (2 * much - 1) * few_weight > (2 * few + 1) * much_weight


def is_at_rest(placement: Placement) -> bool:
    """Nothing of the group moves, or has to."""
    return placement.voters == placement.goal


def moving(now: ClusterMap) -> Mapping[int, Placement]:
    """The groups on their way."""
    return {group: placement for group, placement in now.groups.items() if not is_at_rest(placement)}
