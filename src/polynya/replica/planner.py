"""The placement planner: the next steps to bring groups to their goal, from the map and observed
node states. Pure and deterministic.

Two halves. *Goals*: the voters and preferred leader that each group is to have, as commands for the
map. *Steps*: changes of a group's own configuration towards its goal. Learners come first. Then all
voters change at once by joint consensus, when a majority of both sets is up. Each step is safe
alone and repeatable, so the meta group's next leader can continue from any point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from polynya.raft.configuration import Configuration
from polynya.replica import zones
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, NodeState, Placement

MOVES_AT_ONCE = 4  # groups whose voters change at the same time
ARRIVALS_AT_ONCE = 2  # of these moves, to the same node
LEADS_AT_ONCE = 8  # leadership transfers for balance in one plan
READS_AT_ONCE = 8  # groups that a new read replica receives at the same time


class GroupView(msgspec.Struct, frozen=True):
    """A group as its leader reports it. `settled`: its configuration is committed, and not
    joint."""

    leader: int
    configuration: Configuration
    settled: bool
    # the leader, and the members that have all but the latest log entries
    caught_up: frozenset[int]


class ClusterObservation(msgspec.Struct, frozen=True):
    """The observed cluster. `up`: nodes that answer. `lost`: nodes given up after a long silence.
    Groups without a leader are left out."""

    up: frozenset[int]
    groups: dict[int, GroupView]
    lost: frozenset[int] = frozenset()


class SetVoters(msgspec.Struct, frozen=True):
    """A map command: new goal voters, or another preferred leader."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int


class ConfirmVoters(msgspec.Struct, frozen=True):
    """A map command: the group has these voters."""

    group: int
    voters: tuple[int, ...]
    epoch: int


class ChangeVoters(msgspec.Struct, frozen=True):
    """A request to the group's leader: change the configuration."""

    group: int
    leader: int
    configuration: Configuration


class TransferLeadership(msgspec.Struct, frozen=True):
    """A request to the group's leader: transfer leadership to `to`."""

    group: int
    leader: int
    to: int


class RemoveNode(msgspec.Struct, frozen=True):
    """A map command: remove a node that no longer holds anything."""

    node: int


class MarkBalanced(msgspec.Struct, frozen=True):
    """A map command: replicas and leaders are balanced."""


Step = SetVoters | ConfirmVoters | ChangeVoters | TransferLeadership | RemoveNode | MarkBalanced


def plan(now: ClusterMap, observed: ClusterObservation) -> list[Step]:
    """Return the next steps in a valid order, at most one per group."""
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


# --- steps ----------------------------------------------------------------------------------------


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
            told = [node for node in has.readers if node in up and node not in now.members]
            return tuple(sorted({*now.members, *told} - set(voters)))
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


# --- goals ----------------------------------------------------------------------------------------


class _Goals:
    """The goals of one plan: a working copy of the placements."""

    def __init__(self, now: ClusterMap, observed: ClusterObservation, busy: set[int]) -> None:
        self.now, self.observed, self.busy = now, observed, busy
        self.goals = {group: set(placement.goal) for group, placement in now.groups.items()}
        self.firsts = {group: placement.first for group, placement in now.groups.items()}
        self.moving = {
            group for group, placement in now.groups.items() if placement.goal != placement.voters
        }
        self.ordered = sorted(now.groups)
        # of the meta group, and of all others
        self.wanted = {group: now.wanted(group) for group in self.ordered[:2]}
        self.zoned = any(node.zone for node in now.nodes.values())
        self.crowded = set(zones.crowded(now))
        # replicas outside the meta group, and leaders
        self.held, self.led = (
            dict.fromkeys(now.nodes, 0),
            dict.fromkeys(now.nodes, 0),
        )
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
                if seen.settled:  # otherwise it is still moving to its present goal
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
            if (goal := tuple(sorted(self.goals[group]))) != placement.goal
            or self.firsts[group] != placement.first
        ]
        awaited = any(
            not self.now.nodes[number].cores and number not in self.observed.up
            for number in self.now.active
        )
        if (
            balance
            and settled
            and not steps
            and not awaited
            and len(self.observed.groups) == len(self.now.groups)
        ):
            # wait for an added node that never came up: it must get its share
            steps.append(MarkBalanced())
        return steps

    # Required changes.

    def _mend(self, group: int) -> None:
        """Replace nodes that must not hold replicas, add missing voters, and keep the meta group's
        voters odd above two."""
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
            return  # all or nothing: two voters of three are no better than one
        if found != goal:
            self._set(group, found)
            for heir in sorted(found - goal):
                self._lead_by(group, heir)

    def _lead_by(self, group: int, heir: int) -> None:
        """Give a replacement node its share of leaders: those of the old node moved to others when
        it left."""
        first, record, other = (
            self.firsts[group],
            self.now.nodes[heir],
            self.now.nodes.get(self.firsts[group]),
        )
        if (
            record.replaces
            and other
            and _uneven(self._leads(first), _weight(other), self._leads(heir), _weight(record))
        ):
            self._set_first(group, heir)

    def _heir(self, node: int, found: set[int]) -> int:
        """Return the node that takes over from this one, or 0."""
        for number, record in sorted(self.now.nodes.items()):
            if record.replaces == node and number not in found and self._may_get(record):
                return number
        if any(
            record.replaces == node and record.state == NodeState.ACTIVE
            for record in self.now.nodes.values()
        ):
            return 0  # it is not up yet, or already receives other replicas
        return self._best(found - {node})

    def _best(self, found: set[int]) -> int:
        """Return the best node for another replica of a group on these nodes, or 0."""
        able = [
            record
            for number, record in self.now.nodes.items()
            if number not in found and self._may_get(record)
        ]
        has = zones.tally(self.now.nodes, found)
        best = min(
            able,
            key=lambda each: (
                has[zones.zone_of(each)],
                (2 * self._holds(each.id) + 1) / _weight(each),
                each.id,
            ),
            default=None,
        )
        return 0 if best is None else best.id

    def _mend_first(self, group: int) -> None:
        first, goal = self.firsts[group], self.goals[group]
        record = self.now.nodes.get(first)
        if (
            first in goal
            and record is not None
            and record.state < NodeState.DRAINING
            and first not in self.observed.lost
        ):
            return
        records = [self.now.nodes[node] for node in goal]
        fit = [record for record in records if record.state < NodeState.DRAINING]
        if not fit and first in goal:
            return  # some node has to lead
        up = self.observed.up
        best = min(
            fit or records,
            key=lambda each: (
                each.id not in up,
                each.state,
                (2 * self._leads(each.id) + 1) / _weight(each),
                each.id,
            ),
        )
        self._set_first(group, best.id)

    # Optional changes.

    def _is_whole(self, group: int) -> bool:
        """Report whether no required change is left; zones and balance come after that."""
        goal = self.goals[group]
        return len(goal) >= self._wanted(group) and self.bad.isdisjoint(goal)

    def _balance(self) -> None:
        for group in self.ordered:
            if self._may_move(group) and (
                self.zoned or len(self.goals[group]) > self._wanted(group)
            ):
                self._shrink(group)
                self._spread(group)
        while len(self.moving) < MOVES_AT_ONCE and self._shift():
            pass
        for _ in range(LEADS_AT_ONCE):
            if not self._shift_lead():
                break

    def _may_move(self, group: int) -> bool:
        return (
            group in self.observed.groups
            and group not in self.busy
            and group not in self.moving
            and len(self.moving) < MOVES_AT_ONCE
        )

    def _shrink(self, group: int) -> None:
        """Drop voters beyond the wanted number."""
        goal = set(self.goals[group])
        while len(goal) > self._wanted(group):
            goal.discard(self._dispensable(group, goal))
        if goal != self.goals[group]:
            self._set(group, goal)
            self._mend_first(group)

    def _dispensable(self, group: int, goal: set[int]) -> int:
        """Return the voter to drop first."""
        up = self.observed.up
        return max(
            goal,
            key=lambda node: (
                node not in up,
                self._zone_mates(node, goal),
                self._load(node),
                node != self.firsts[group],
                node,
            ),
        )

    def _spread(self, group: int) -> None:
        """Move one replica from an over-represented zone to one with at least two fewer."""
        goal = self.goals[group]
        able = [number for number, record in self.now.nodes.items() if self._may_get(record)]
        mates, targets = zones.better(self.now.nodes, goal, able)
        if targets and self._may_move(group):
            going = max(
                mates,
                key=lambda node: (
                    node not in self.observed.up,
                    self._load(node),
                    node != self.firsts[group],
                    node,
                ),
            )
            has = zones.tally(self.now.nodes, goal)
            coming = min(
                targets,
                key=lambda node: (has[zones.zone_of(self.now.nodes[node])], self._load(node), node),
            )
            self._set(group, (goal - {going}) | {coming})
            self._mend_first(group)

    def _shift(self) -> bool:
        """Move one replica from an overloaded node to an underloaded one. Returns False if all is
        even."""
        numbers = [
            number
            for number, record in sorted(self.now.nodes.items())
            if record.state != NodeState.REMOVED and not record.reader
        ]
        pairs = [
            (one, two)
            for one in numbers
            for two in numbers
            if one != two and self._may_get(self.now.nodes[two])
        ]
        for one, two in sorted(pairs, key=lambda pair: self._load(pair[1]) - self._load(pair[0])):
            if not _uneven(
                self._holds(one),
                _weight(self.now.nodes[one]),
                self._holds(two),
                _weight(self.now.nodes[two]),
            ):
                continue
            for group in reversed(self.ordered):
                goal = self.goals[group]
                if (
                    group == META_GROUP
                    or one not in goal
                    or two in goal
                    or not self._may_move(group)
                ):
                    continue
                after = (goal - {one}) | {two}
                if self._zone_mates(two, after) <= self._zone_mates(one, goal):
                    self._set(group, after)
                    self._mend_first(group)
                    return True
        return False

    def _shift_lead(self) -> bool:
        """Move preferred leaders from an overloaded node to an underloaded one, over intermediate
        nodes if needed. Returns False if all is even."""
        fit = sorted(self.observed.up.intersection(self.now.active))
        for few in sorted(
            fit, key=lambda node: (self._leads(node) / _weight(self.now.nodes[node]), node)
        ):
            way = self._way_to(few, fit)
            if way:
                for group, node in way:
                    self._set_first(group, node)
                return True
        return False

    def _way_to(self, few: int, fit: list[int]) -> list[tuple[int, int]]:
        """Return the shortest chain of leader changes, each in another group, that moves one leader
        from an overloaded node to `few`."""
        ways: dict[int, list[tuple[int, int]]] = {few: []}
        queue = [few]
        while queue:
            node = queue.pop(0)
            for group in self.ordered:
                first = self.firsts[group]
                if (
                    first in ways
                    or first not in fit
                    or node not in self.goals[group]
                    or group in self.moving
                    or group in self.busy
                ):
                    continue
                ways[first] = [(group, node), *ways[node]]
                if _uneven(
                    self._leads(first),
                    _weight(self.now.nodes[first]),
                    self._leads(few),
                    _weight(self.now.nodes[few]),
                ):
                    return ways[first]
                queue.append(first)
        return []

    # Helpers.

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
        """Return the wanted number of voters."""
        return self.wanted[self.ordered[0] if group == self.ordered[0] else self.ordered[1]]

    def _is_bad(self, node: int) -> bool:
        record = self.now.nodes.get(node)
        return record is None or record.state >= NodeState.EMPTYING or node in self.observed.lost

    def _may_get(self, record: NodeRecord) -> bool:
        ready = (
            record.state == NodeState.ACTIVE and not record.reader and record.id in self.observed.up
        )
        return ready and self.arrivals[record.id] < ARRIVALS_AT_ONCE

    def _holds(self, node: int) -> int:
        return self.held[node]

    def _load(self, node: int) -> float:
        return self._holds(node) / _weight(self.now.nodes[node])

    def _leads(self, node: int) -> int:
        return self.led[node]

    def _zone_mates(self, node: int, goal: Iterable[int]) -> int:
        """Return the number of other nodes of `goal` in the node's zone."""
        return zones.mates(self.now.nodes, node, goal)


def _weight(record: NodeRecord) -> int:
    return max(record.cores, 1)


def _uneven(much: int, much_weight: int, few: int, few_weight: int) -> bool:
    """Report whether moving one from `much` to `few` is more even. Each such move lowers the
    weighted sum of squares, so moves terminate."""
    return (2 * much - 1) * few_weight > (2 * few + 1) * much_weight


def is_at_rest(placement: Placement) -> bool:
    """Report whether the group is at its goal."""
    return placement.voters == placement.goal


def moving(now: ClusterMap) -> Mapping[int, Placement]:
    """Return the groups that are moving."""
    return {
        group: placement for group, placement in now.groups.items() if not is_at_rest(placement)
    }
