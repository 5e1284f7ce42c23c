"""The goals of a placement plan: which nodes are to hold and to lead each group."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.replica import zones
from polynya.replica.placement_steps import (
    ClusterObservation,
    MarkBalanced,
    SetVoters,
    Step,
)
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, NodeState

MOVES_AT_ONCE = 4  # groups whose voters change at the same time
ARRIVALS_AT_ONCE = 2  # of these moves, to the same node
LEADS_AT_ONCE = 8  # leadership transfers for balance in one plan


class PlacementGoals:
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
        balance = self.now.balancing and all(map(self._is_whole, self.ordered))
        for group in () if balance else self.ordered:
            if group in self.crowded and self._may_spread(group) and self._may_move(group):
                self._spread(group)
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
            successor = self._successor(node, found)
            if successor:
                found = (found - {node}) | {successor}
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
            for successor in sorted(found - goal):
                self._lead_by(group, successor)

    def _lead_by(self, group: int, successor: int) -> None:
        """Give a replacement node its share of leaders: those of the old node moved to others when
        it left."""
        first, record, other = (
            self.firsts[group],
            self.now.nodes[successor],
            self.now.nodes.get(self.firsts[group]),
        )
        if (
            record.replaces
            and other
            and _uneven(self.led[first], _weight(other), self.led[successor], _weight(record))
        ):
            self._set_first(group, successor)

    def _successor(self, node: int, found: set[int]) -> int:
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
                (2 * self.held[each.id] + 1) / _weight(each),
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
                (2 * self.led[each.id] + 1) / _weight(each),
                each.id,
            ),
        )
        self._set_first(group, best.id)

    # Optional changes.

    def _is_whole(self, group: int) -> bool:
        """Report whether no required change is left; zones and balance come after that."""
        goal = self.goals[group]
        return len(goal) >= self._wanted(group) and self.bad.isdisjoint(goal)

    def _may_spread(self, group: int) -> bool:
        """Report whether no required change is left that is possible: the group is whole, or too few
        nodes may get its missing voters, as while others are drained."""
        goal, wanted = self.goals[group], self._wanted(group)
        able = sum(
            number not in goal and self._may_get(record)
            for number, record in self.now.nodes.items()
        )
        return self.bad.isdisjoint(goal) and not len(goal) < wanted <= len(goal) + able

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
                self.held[one],
                _weight(self.now.nodes[one]),
                self.held[two],
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
            fit, key=lambda node: (self.led[node] / _weight(self.now.nodes[node]), node)
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
                    self.led[first],
                    _weight(self.now.nodes[first]),
                    self.led[few],
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

    def _load(self, node: int) -> float:
        return self.held[node] / _weight(self.now.nodes[node])

    def _zone_mates(self, node: int, goal: Iterable[int]) -> int:
        """Return the number of other nodes of `goal` in the node's zone."""
        return zones.mates(self.now.nodes, node, goal)


def _weight(record: NodeRecord) -> int:
    return max(record.cores, 1)


def _uneven(much: int, much_weight: int, few: int, few_weight: int) -> bool:
    """Report whether moving one from `much` to `few` is more even. Each such move lowers the
    weighted sum of squares, so moves terminate."""
    return (2 * much - 1) * few_weight > (2 * few + 1) * much_weight
