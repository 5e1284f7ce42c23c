"""The quorum of the meta group, as the Kafka front knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from polynya.base.errors import Unavailable


class QuorumMember(msgspec.Struct, frozen=True):
    """A member of the meta group: its broker, and the end of its log as the leader knows it."""

    broker: int
    end: int


class Quorum(msgspec.Struct, frozen=True):
    """The meta group, from its leader. Offsets are those behind the last entry."""

    leader: int
    epoch: int
    committed: int
    voters: list[QuorumMember]
    observers: list[QuorumMember] = []


QuorumSource = Callable[[], Awaitable[Quorum]]
"""Asks the leader of the meta group. Raises PolynyaError."""


async def unknown_quorum() -> Quorum:
    """Raise Unavailable: the front was given no quorum."""
    raise Unavailable("the quorum of the meta group is not known here")
