"""The limit of open files, and the share of it that client connections may use.

The rest is reserved for the journal, the object store and connections to other cores and nodes;
clients cannot exhaust it.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from polynya.base.errors import ConfigError
from polynya.base.limits import CONNECTIONS_PER_CORE_MAX

WANTED = 65_536  # if the hard limit allows it
OWN = 96  # of a core: journal, snapshots, objects, threads' files, listeners
OF_A_CORE = 4  # connections to each core of another node: two outgoing, two incoming
CLIENTS_LEAST = 32
ADMIN_PART = 8  # an admin port gets this fraction


class Shares(NamedTuple):
    """The maximum client connections of a core, at the base port and at each admin port."""

    base: int
    admin: int


def raise_limit() -> int:
    """Raise the soft limit as far as the hard limit allows, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return CONNECTIONS_PER_CORE_MAX * 2 if soft == resource.RLIM_INFINITY else soft


def shares(limit: int, *, cores: int, nodes: int) -> Shares:
    """Return the connection limits of a core that may open `limit` files. Raises ConfigError when
    that is too few."""
    kept = OWN + 2 * cores + OF_A_CORE * cores * max(nodes - 1, 0)
    room = limit - kept
    if room < CLIENTS_LEAST:
        raise ConfigError(
            f"a core may open {limit} files, but needs {kept} besides those for its clients: "
            f"'ulimit -n {WANTED}' before 'polynya serve', "
            f"LimitNOFILE={WANTED} in its unit, or --ulimit nofile={WANTED} for its container"
        )
    admin = max(room // ADMIN_PART, 4)
    return Shares(
        min(room - 2 * admin, CONNECTIONS_PER_CORE_MAX), min(admin, CONNECTIONS_PER_CORE_MAX)
    )
