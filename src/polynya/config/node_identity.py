"""The fixed identity of a data folder: `DATA/node.json`, written once, checked at every start."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.formats import FORMAT, check_format
from polynya.base.msgpack import UNREADABLE
from polynya.config.cluster_settings import ClusterNode
from polynya.config.model import GROUPS_DEFAULT, Config, cores_default
from polynya.files import sync_folder, write_whole

FILE = "node.json"
RESTORING = "restore.begun"  # in a folder with an unfinished restore
PRIVATE = "private.json"  # folders already restricted to their owner
REMOVED = "removed"  # exists once the node was removed from its cluster
OLDER = (
    "it has to be copied. Start the release that wrote it, start this one on an empty folder, and "
    "copy each stream with 'polynya import' "
    "(docs/migration.md, From a build before the first release)"
)
# Entries that a folder may hold before it gets an identity.
_BEFORE_BIRTH = {
    "run",
    "node.lock",
    "node.pid",
    "node.tmp",
    "node.log",
    "polynya.toml",
    "start.sh",
    PRIVATE,
    "lost+found",
    "access",
    "tls",
}


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a node's data. A restore or an accepted data loss starts a new `history`."""

    format_version: int = FORMAT
    cluster_id: str  # 128 random bits, hexadecimal
    node: int = 0  # id in the cluster; 0 is a standalone node
    nodes: tuple[int, ...] = ()  # birth nodes of the cluster; empty on a node that joined later
    zones: tuple[str, ...] = ()  # their zones
    readers: tuple[int, ...] = ()  # read replicas planned at birth
    replicas: int = 0  # replicas of each group at birth; 0: all nodes had every group
    history: int = 1
    groups: int
    cores: int
    created_ms: int
    # not yet confirmed by all other nodes: see `polynya.cluster.discovery`
    provisional: bool = False


class DiscoveredCluster(msgspec.Struct, frozen=True):
    """The cluster as other nodes report it; 0 is unknown."""

    history: int = 0
    groups: int = 0
    removed_by: int = 0  # node that reports this node's number as removed


def identity_of(config: Config, learned: DiscoveredCluster | None = None) -> NodeIdentity:
    """Return the identity in the data folder, or create one. The caller holds the folder's lock. A
    new identity is provisional until all other nodes confirm it; `learned` is their report so far.

    Raise `ConfigError` if the configuration contradicts it, `CorruptData` if it is unreadable.
    """
    path = Path(config.data) / FILE
    if (path.parent / REMOVED).exists():
        raise ConfigError(removed_text(config))
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return _bear(path, config, learned or DiscoveredCluster())
    try:
        identity = msgspec.json.decode(raw, type=NodeIdentity)
    except UNREADABLE as error:
        raise CorruptData(
            f"{path} cannot be read ({error}); restore it from a copy: the data cannot be opened "
            "without it"
        ) from None
    _check(identity, config, path)
    return identity


def removed_text(config: Config) -> str:
    """Return the message for the start of a removed node."""
    return (
        f"data: node {config.cluster.node} was removed from the cluster, and the data in "
        f"{config.data} is obsolete; to add this "
        "machine again, use an empty folder and a new number ('polynya cluster add')"
    )


def journal_id_of(cluster_id: str, core: int) -> int:
    """Return the journal id of a core, which detects a folder in the wrong place."""
    return int(cluster_id[:14] or "0", 16) << 8 | core


def _bear(path: Path, config: Config, learned: DiscoveredCluster) -> NodeIdentity:
    if learned.removed_by:
        raise ConfigError(
            f"cluster.node: number {config.cluster.node} was removed from the cluster, as node "
            f"{learned.removed_by} reports, and is never reused; "
            "add this machine under a new number ('polynya cluster add')"
        )
    strangers = strangers_in(path.parent)
    if RESTORING in strangers:
        raise ConfigError(
            f"data: a restore into {path.parent} was interrupted; give the command again, or "
            "remove the folder"
        )
    if strangers:
        raise ConfigError(
            f"data: {path.parent} is not empty ({', '.join(strangers[:5])}) and has no {FILE}; "
            "name an empty or a new folder, "
            f"or, if this is a node's data, restore {FILE} from a copy"
        )
    return bear(path, config, learned)


def bear(path: Path, config: Config, learned: DiscoveredCluster) -> NodeIdentity:
    """Write the identity of a folder without data to keep."""
    groups, history = (
        config.groups or learned.groups or GROUPS_DEFAULT,
        max(config.cluster.history, learned.history),
    )
    identity = new_birth(config, config.cluster.id or secrets.token_hex(16), groups, history)
    identity = msgspec.structs.replace(identity, provisional=bool(config.cluster.others))
    write_json(path, identity)
    sync_folder(path.parent.parent)
    return identity


def new_birth(config: Config, cluster_id: str, groups: int, history: int = 1) -> NodeIdentity:
    """Return the identity of a new folder with these settings."""
    cluster = config.cluster
    return NodeIdentity(
        cluster_id=cluster_id,
        node=cluster.node,
        nodes=() if cluster.joins else tuple(node.id for node in _nodes(config)),
        zones=() if cluster.joins else tuple(node.zone for node in _nodes(config)),
        readers=()
        if cluster.joins
        else tuple(sorted(node.id for node in cluster.nodes if node.reader)),
        replicas=cluster.replicas if cluster.is_on else 0,
        history=history,
        groups=groups,
        cores=config.cores or min(cores_default(), groups),
        created_ms=time.time_ns() // 1_000_000,
    )


def strangers_in(folder: Path, beside: frozenset[str] = frozenset()) -> list[str]:
    """Return the entries that prevent a folder from becoming a data folder."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name not in _BEFORE_BIRTH | beside and entry.name[0] != "."
    )


def _check(identity: NodeIdentity, config: Config, path: Path) -> None:
    check_format(f"{path}: the data", identity.format_version, older=OLDER)
    _check_cluster(identity, config, path)
    if config.cores is not None and config.cores > identity.groups:
        raise ConfigError(
            f"cores: {config.cores} are more than the {identity.groups} groups of the data in "
            f"{path.parent}, and a core without a group would have "
            f"nothing to do; start with at most --cores {identity.groups}"
        )
    if config.groups is not None and config.groups != identity.groups:
        raise ConfigError(
            f"groups: the data in {path.parent} has {identity.groups} groups, and a stream's group "
            "is fixed for life; "
            f"start with --groups {identity.groups} (or without the setting)"
        )


def _nodes(config: Config) -> list[ClusterNode]:
    return sorted(config.cluster.voting, key=lambda node: node.id)


def _check_cluster(identity: NodeIdentity, config: Config, path: Path) -> None:
    """Check that the data belongs to the configured cluster and node."""
    cluster = config.cluster
    if not cluster.is_on and identity.node:
        raise ConfigError(
            f"cluster: the data in {path.parent} is that of node {identity.node} of the cluster "
            f"{identity.cluster_id}, and cannot be used standalone; "
            "start it with the settings of that cluster"
        )
    if cluster.is_on and not identity.node:
        raise ConfigError(
            f"cluster: the data in {path.parent} was written by a standalone node and is unknown "
            "to the other nodes; start the cluster on "
            "new folders and copy the streams ('polynya import')"
        )
    if cluster.is_on and identity.cluster_id != cluster.id:
        raise ConfigError(
            f"cluster.id: the data in {path.parent} belongs to the cluster {identity.cluster_id}; "
            f"this is {cluster.id}"
        )
    if identity.node != cluster.node:
        raise ConfigError(
            f"cluster.node: the data in {path.parent} is that of node {identity.node}; this is node "
            f"{cluster.node}"
        )


def write_json(path: Path, content: msgspec.Struct) -> None:
    """Write a JSON file atomically, also under a power cut."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
