"""The owner groups of packs: for each pack, a group that logs its intent. A group without a leader, and one
whose log was slow a moment ago, is not chosen while there is another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol

from polynya.cold.groups import Groups

SLOW_SECONDS = 10.0  # for which a group with a late intent is not chosen again


class LedGroups(Groups, Protocol):
    """The groups of streams, with their leaders."""

    @property
    def numbers(self) -> Sequence[int]:
        """All groups of streams."""
        ...

    def may_commit(self, group: int, level: int) -> bool:
        """Report whether the group's log may have what this feature level added; if the group is
        led elsewhere, whether that of any group here may."""
        ...

    def leader_of(self, group: int) -> int:
        """Return the node that leads a group, if this node reaches it; -1: none is known."""
        ...


class OwnerGroups:
    """The choice of one writer."""

    def __init__(self, groups: LedGroups, now: Callable[[], float]) -> None:
        self._groups = groups
        self._now = now
        self._slow: dict[int, float] = {}  # groups, and until when they are avoided

    def choose(self, members: Sequence[int], *, again: bool = False) -> int:
        """Return the owner group of a pack with slices of the groups `members`: one of them that is led
        here, else one with a leader, else another group in the same order. 0 without members.
        `again`: an earlier one was slow, so prefer any group that is led here."""
        if not members:
            return 0
        led = self._groups.machines()
        near = [group for group in members if group in led]
        owner_group = self._best(near)
        if owner_group is None:
            others = self._groups.numbers
            here = [group for group in others if group in led]
            owner_group = self._best(*((here, members) if again else (members, here)), others)
        return members[0] if owner_group is None else owner_group

    def avoid(self, owner_group: int, members: Sequence[int]) -> bool:
        """Avoid an owner group whose log did not take an intent in time. Return False, and do nothing, if
        no other group is better."""
        if (
            self._best(group for group in (*members, *self._groups.numbers) if group != owner_group)
            is None
        ):
            return False
        self._slow[owner_group] = self._now() + SLOW_SECONDS
        return True

    def _best(self, *choices: Iterable[int]) -> int | None:
        """Return the first group that is not slow and has a leader; None: there is none."""
        for group in chain(*choices):
            if not self._is_slow(group) and self._groups.leader_of(group) >= 0:
                return group
        return None

    def _is_slow(self, group: int) -> bool:
        until = self._slow.get(group)
        if until is None:
            return False
        if until <= self._now():
            del self._slow[group]
            return False
        return True
