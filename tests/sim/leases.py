"""Leases are safe only without a second leader: checked at every read by a lease, not only when a
read returns stale data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from polynya.raft import Raft, Role, reading

if TYPE_CHECKING:
    from sim.cluster import World


@contextmanager
def leases_checked(world: World) -> Iterator[None]:
    """Check leases during an episode of this world."""
    sound = reading.has_lease

    def has_lease(raft: Raft) -> bool:
        held = sound(raft)
        if held:
            world.broken += _others(world, raft)
        return held

    with mock.patch.object(reading, "has_lease", has_lease):
        yield


def _others(world: World, raft: Raft) -> Iterator[str]:
    """Yield a description of each leader of the group in a later term."""
    for node in world.alive():
        member = node.core.members.get(raft.group) if node.number != raft.node else None
        if member is not None and member.raft.role is Role.LEADER and member.raft.term > raft.term:
            yield (
                f"node {raft.node} answers by a lease of group {raft.group} in term {raft.term}, "
                f"and node {node.number} leads in term {member.raft.term}"
            )
