"""What a core is told of the cluster that it is a part of."""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import randbits
from typing import Protocol

import msgspec

from polynya.base.limits import MIB
from polynya.raft import Settings

LOG_BYTES = 64 * MIB  # of a core: payload of applied entries kept in memory for members that lag
UNCOMMITTED_BYTES = 64 * MIB  # of a core, shared by its groups: above what the door lets in


class Membership(msgspec.Struct, frozen=True):
    """This node's number, and those of all nodes that have a voice: each has a replica of every group."""

    node: int
    voters: tuple[int, ...]

    def first_of(self, group: int) -> int:
        """Leaderships are spread: each group has a node that campaigns first, and gets the lead back when it returns."""
        return self.voters[group % len(self.voters)]


class Links(Protocol):
    """The way to the same core of the other nodes. What cannot be sent is dropped: Raft sends it again."""

    def send(self, node: int, messages: list[bytes]) -> None:
        """All that a turn has for that node, but what is large. Called before the turn's own write."""
        ...

    def send_bulk(self, node: int, messages: list[bytes]) -> None:
        """Chunks of snapshots, which must not hold up the others."""
        ...


def boot_ms() -> int:
    """Time for leases and elections: it counts suspension and never goes back (F13)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def settings_of(group: int, membership: Membership, groups: int) -> Settings:
    """`groups`: of this core, which share its memory."""
    first = membership.first_of(group) == membership.node
    return Settings(
        priority=2 if first else 1,
        log_bytes_max=max(LOG_BYTES // max(groups, 1), 256 * 1024),
        uncommitted_bytes_max=UNCOMMITTED_BYTES,
    )


class Cluster(msgspec.Struct, frozen=True):
    """`seed` gives random bits that no other life of this process had."""

    membership: Membership
    links: Links
    now_ms: Callable[[], int] = boot_ms
    seed: Callable[[], int] = lambda: randbits(64)
    settings: Callable[[int, Membership, int], Settings] = settings_of
