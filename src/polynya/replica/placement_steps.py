"""The steps of a placement plan, and what a plan is made from."""

from __future__ import annotations

import msgspec

from polynya.raft.configuration import Configuration


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
