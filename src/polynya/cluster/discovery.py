"""Discovery for a node without data: it asks the other nodes and the object store for the cluster's
history and group count.

The result is provisional until every other node has answered. A node that finds a later history
restarts its folder in that history. This loses no data: a member with an empty disk takes no part
before all others have answered. A folder with a log entry is never restarted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from polynya import __version__
from polynya.base import levels
from polynya.base.errors import ConfigError
from polynya.cluster.certificates import peer_tls_of
from polynya.config.cluster_settings import ClusterNode
from polynya.config.model import Config
from polynya.config.node_identity import DiscoveredCluster, NodeIdentity, journal_id_of
from polynya.objectstore import StoreUnavailable, open_store, read_root
from polynya.raft import EntryKind
from polynya.transport import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Dialer,
    Hello,
    LinkEvents,
    PeerTls,
    report_lost,
)
from polynya.wal import Journal, SnapshotStore

STORE_SECONDS = 5.0
ASK_SECONDS, ASK_SECONDS_MAX = 0.5, 15.0  # between two discovery rounds
_ENTRIES = (EntryKind.COMMAND, EntryKind.NOOP, EntryKind.CONFIGURATION)
log = logging.getLogger("polynya.node")


async def learn(config: Config) -> DiscoveredCluster:
    """Return the cluster's newest history and its group count, from the reachable nodes and the
    store."""
    hellos = await ask_others(config, config.cluster.others)
    histories = [hello.history for hello in hellos.values()]
    if config.cluster.others:
        histories.append(await _of_the_store(config))
    newest = max(
        (hello for hello in hellos.values()), key=lambda hello: hello.history, default=None
    )
    groups = newest.groups if newest is not None else 0
    return DiscoveredCluster(
        max(histories, default=0),
        groups,
        next((hello.node for hello in hellos.values() if hello.removed), 0),
    )


async def ask_others(config: Config, nodes: Iterable[ClusterNode]) -> dict[int, Hello]:
    """Return the handshakes of the nodes that answer, by id. Runs on its own loop or the
    supervisor's."""
    asyncio.get_running_loop().set_exception_handler(report_lost)
    try:
        tls = peer_tls_of(config.cluster)
    except ConfigError:  # the start reports it
        return {}

    async def ask(node: ClusterNode) -> tuple[int, Hello | None]:
        return node.id, await _ask(config, node, tls)

    answers = await asyncio.gather(*map(ask, nodes))
    return {number: hello for number, hello in answers if hello is not None}


async def _ask(config: Config, node: ClusterNode, tls: PeerTls | None) -> Hello | None:
    cluster = config.cluster
    # History 0 means none. A release that does not know this handshake refuses it, with the same
    # data.
    own = Hello(
        PROTOCOL_MIN,
        PROTOCOL_MAX,
        cluster.id,
        0,
        0,
        cluster.node,
        0,
        1,
        "",
        __version__,
        levels.LEVEL,
        asks=True,
    )
    try:
        return await Dialer(own, node.id, node.peer_address, tls, LinkEvents()).ask()
    except OSError:
        return None


async def _of_the_store(config: Config) -> int:
    """Return the history in the store's root marker, or 0 if unknown. The cores report store
    faults."""
    store = None
    try:
        async with asyncio.timeout(STORE_SECONDS):
            store = open_store(config.store)
            marker = await read_root(store) if store is not None else None
    except (ConfigError, StoreUnavailable, TimeoutError):
        return 0
    finally:
        if store is not None:
            await store.close()
    return marker.history if marker is not None and marker.cluster_id == config.cluster.id else 0


async def differs(config: Config, identity: NodeIdentity, unheard: set[int]) -> bool:
    """Ask the nodes in `unheard` once. Return True if one belongs to another history or group count
    than this folder. Remove the nodes that agree from `unheard`."""
    hellos = await ask_others(
        config, [node for node in config.cluster.others if node.id in unheard]
    )
    for number, hello in hellos.items():
        if is_other(config, identity, DiscoveredCluster(hello.history, hello.groups)):
            return True
        if hello.history == identity.history:
            unheard.discard(number)
    return False


def is_other(config: Config, identity: NodeIdentity, learned: DiscoveredCluster) -> bool:
    """Return True if a folder without data must restart with the discovered values."""
    if learned.history > identity.history:
        return True
    return (
        learned.history == identity.history
        and config.groups is None
        and learned.groups not in (0, identity.groups)
    )


def begun_anew(folder: Path, identity: NodeIdentity) -> bool:
    """Delete the cores' data of a provisional folder and return True. Return False if one of its
    logs has an entry. Raise CorruptData."""
    if not all(
        _is_blank(
            folder / f"core-{core}", journal_id_of(identity.cluster_id, core), identity.groups
        )
        for core in range(identity.cores)
    ):
        log.error(
            "the data in this folder is of an earlier history than the cluster: start this node "
            "on an empty folder"
        )
        return False
    for core in folder.glob("core-*"):
        shutil.rmtree(core)
    return True


def _is_blank(folder: Path, journal_id: int, groups: int) -> bool:
    if not folder.exists():
        return True
    journal = Journal.open(folder / "journal", journal_id=journal_id)
    try:
        if any(frame.kind in _ENTRIES for frame in journal.segments.entries()):
            return False
    finally:
        journal.close()
    store = SnapshotStore(folder / "snapshots")
    return not any(link.index for group in range(groups + 1) for link in store.links(group))


def settled(identity: NodeIdentity) -> NodeIdentity:
    """Return the identity with `provisional` cleared."""
    return msgspec.structs.replace(identity, provisional=False)
