"""What a core is told of the cluster that it is a part of."""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import randbits
from typing import Protocol

import msgspec

from polynya.base.limits import MIB
from polynya.raft import Configuration, Settings
from polynya.stream.placement import META_GROUP

LOG_BYTES = 64 * MIB  # of a core: payload of applied entries kept in memory for members that lag
UNCOMMITTED_BYTES = 64 * MIB  # of a core, shared by its groups: above what the door lets in


class Membership(msgspec.Struct, frozen=True):
    """This node's number, and what its cluster was born with: the nodes (none, where this one joined later), and which of them got which
    group, if not all got all."""

    node: int
    voters: tuple[int, ...]
    placed: dict[int, tuple[int, ...]] = {}

    def placed_on(self, group: int) -> tuple[int, ...]:
        return self.placed.get(group, self.voters)

    def born_with(self, group: int) -> Configuration:
        """What the group's members began with. All nodes have the meta group, to know where the others are."""
        voters = tuple(sorted(self.placed_on(group)))
        return Configuration(voters, readers=tuple(sorted(set(self.voters) - set(voters))) if group == META_GROUP else ())

    def first_of(self, group: int) -> int:
        """Leaderships are spread: each group has a node that campaigns first, and gets the lead back when it returns."""
        nodes = self.placed_on(group)
        return nodes[group % len(nodes)] if nodes else 0


class PeerLinks(Protocol):
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


def settings_of(group: int, is_first: bool, groups: int) -> Settings:
    """`is_first`: this node is to lead it; `groups`: of this core, which share its memory."""
    return Settings(
        priority=2 if is_first else 1,
        log_bytes_max=max(LOG_BYTES // max(groups, 1), 256 * 1024),
        uncommitted_bytes_max=UNCOMMITTED_BYTES,
    )


class ClusterSettings(msgspec.Struct, frozen=True):
    """`groups`: how many there are for streams, in all. `seed` gives random bits that no other life of this process had. `reached` hears of log
    time that others have logged and this node's clock has not reached."""

    membership: Membership
    links: PeerLinks
    groups: int
    now_ms: Callable[[], int] = boot_ms
    seed: Callable[[], int] = lambda: randbits(64)
    settings: Callable[[int, bool, int], Settings] = settings_of
    reached: Callable[[int], None] = lambda log_ms: None
