"""The cluster settings of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import randbits
from typing import Protocol

import msgspec

from polynya.base.limits import MIB
from polynya.raft import Configuration, Settings
from polynya.stream.features.placement.cluster_map import META_GROUP

LOG_BYTES = 64 * MIB  # of a core: payload of applied entries kept in memory for followers that lag
# of a core, shared by its groups; higher than the engine's admission limit
UNCOMMITTED_BYTES = 64 * MIB


class Membership(msgspec.Struct, frozen=True):
    """This node's number and the cluster's initial membership.

    `voters`: the initial nodes; empty if this node joined later. `placed`: the initial nodes of a
      group, if not all."""

    node: int
    voters: tuple[int, ...]
    placed: dict[int, tuple[int, ...]] = {}

    def placed_on(self, group: int) -> tuple[int, ...]:
        return self.placed.get(group, self.voters)

    def born_with(self, group: int) -> Configuration:
        """Return the group's initial configuration. All nodes have the meta group, which locates
        the other groups."""
        voters = tuple(sorted(self.placed_on(group)))
        return Configuration(
            voters,
            readers=tuple(sorted(set(self.voters) - set(voters))) if group == META_GROUP else (),
        )

    def first_of(self, group: int) -> int:
        """Return the preferred leader, which campaigns first and regains leadership when it
        returns. This spreads leaderships."""
        nodes = self.placed_on(group)
        return nodes[group % len(nodes)] if nodes else 0


class PeerLinks(Protocol):
    """The links to the same core of the other nodes. A message that cannot be sent is dropped; Raft
    retries it."""

    def send(self, node: int, messages: list[bytes]) -> None:
        """Send a turn's messages except the large ones; called before the turn's own write."""
        ...

    def send_bulk(self, node: int, messages: list[bytes]) -> None:
        """Send snapshot chunks, which must not delay the other messages."""
        ...


def boot_ms() -> int:
    """Return the time for leases and elections: it counts suspension and never goes back."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def settings_of(group: int, is_first: bool, groups: int) -> Settings:
    """Return the Raft settings. `is_first`: this node is the preferred leader; `groups`: the groups
    that share the memory."""
    return Settings(
        priority=2 if is_first else 1,
        log_bytes_max=max(LOG_BYTES // max(groups, 1), 256 * 1024),
        uncommitted_bytes_max=UNCOMMITTED_BYTES,
    )


class ClusterSettings(msgspec.Struct, frozen=True):
    """The cluster settings of a core.

    `groups`: the number of stream groups. `seed` returns random bits unique to this process run.
      `reached` is called with log times of
    other nodes that are ahead of the local clock."""

    membership: Membership
    links: PeerLinks
    groups: int
    now_ms: Callable[[], int] = boot_ms
    seed: Callable[[], int] = lambda: randbits(64)
    settings: Callable[[int, bool, int], Settings] = settings_of
    reached: Callable[[int], None] = lambda log_ms: None
