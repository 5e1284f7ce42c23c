"""Open files: as many as this process may have, and how many of those clients may take. What is left is for the journal, the object store and the
other cores and nodes, so that a crowd of clients stops none of these."""

from __future__ import annotations

import resource
from typing import NamedTuple

from polynya.base.errors import ConfigError
from polynya.base.limits import CONNECTIONS_PER_CORE_MAX

WANTED = 65_536  # where the hard limit allows it
OWN = 96  # of a core: journal, snapshots, objects, threads' files, listeners
OF_A_CORE = 4  # to each core of another node: two lanes there, two back
CLIENTS_LEAST = 32
ADMIN_PART = 8  # an admin port may take one in so many


class Shares(NamedTuple):
    """Connections of clients that a core takes, at the base port and at each admin port."""

    base: int
    admin: int


def raise_limit() -> int:
    """To what the hard limit allows; the limit there is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return CONNECTIONS_PER_CORE_MAX * 2 if soft == resource.RLIM_INFINITY else soft


def shares(limit: int, *, cores: int, nodes: int) -> Shares:
    """Of a core that may open `limit` files, in a cluster of so many nodes. Raises ConfigError when that is too little."""
    kept = OWN + 2 * cores + OF_A_CORE * cores * max(nodes - 1, 0)
    room = limit - kept
    if room < CLIENTS_LEAST:
        raise ConfigError(
            f"a core may open {limit} files, and needs {kept} beside those for its clients: 'ulimit -n {WANTED}' before 'polynya serve', "
            f"LimitNOFILE={WANTED} in its unit, or --ulimit nofile={WANTED} for its container"
        )
    admin = max(room // ADMIN_PART, 4)
    return Shares(min(room - 2 * admin, CONNECTIONS_PER_CORE_MAX), min(admin, CONNECTIONS_PER_CORE_MAX))
