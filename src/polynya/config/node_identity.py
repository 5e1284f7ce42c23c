"""What is fixed when a data folder is born: `DATA/node.json`, written once, checked at every start."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.formats import FORMAT, check_format
from polynya.config.cluster_settings import ClusterNode
from polynya.config.model import GROUPS_DEFAULT, Config, cores_default
from polynya.files import sync_folder, write_whole

FILE = "node.json"
RESTORING = "restore.begun"  # in a folder that a restore has begun and not finished
PRIVATE = "private.json"  # the folders whose older files only their owner may read by now
REMOVED = "removed"  # is there once the node was removed from its cluster
OLDER = (
    "it has to be copied. Start the release that wrote it, start this one on an empty folder, and copy each stream with 'polynya import' "
    "(docs/migration.md, From a build before the first release)"
)
# What may be there already.
_BEFORE_BIRTH = {"run", "node.lock", "node.pid", "node.tmp", "node.log", "polynya.toml", "start.sh", PRIVATE, "lost+found", "access", "tls"}


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a node's data. `history` moves on when a restore or an accepted loss starts a new one (F4)."""

    format_version: int = FORMAT
    cluster_id: str  # 128 random bits, hexadecimal
    node: int = 0  # of the cluster; 0 is a node by itself
    nodes: tuple[int, ...] = ()  # that the cluster was born with; of a node that joined it later none
    zones: tuple[str, ...] = ()  # theirs
    readers: tuple[int, ...] = ()  # that it was to have as read replicas
    replicas: int = 0  # that were wanted of each group then; 0: all nodes had everything
    history: int = 1
    groups: int
    cores: int
    created_ms: int
    provisional: bool = False  # whoever knows the cluster may not have been heard: see `learning`


class DiscoveredCluster(msgspec.Struct, frozen=True):
    """What others say of the cluster; 0 is unknown."""

    history: int = 0
    groups: int = 0
    removed_by: int = 0  # a node that knows that this one's number was removed from the cluster


def birth_of(config: Config, learned: DiscoveredCluster | None = None) -> NodeIdentity:
    """The identity in the data folder; a folder without one is born now, and is provisional when others are not heard yet (`learned`: what they
    say). The caller holds the folder's lock.

    Raises `ConfigError` when the configuration contradicts it, `CorruptData` when it cannot be read.
    """
    path = Path(config.data) / FILE
    if (path.parent / REMOVED).exists():
        raise ConfigError(removed_text(config))
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return _bear(path, config, learned or DiscoveredCluster())
    try:
        birth = msgspec.json.decode(raw, type=NodeIdentity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"{path} cannot be read ({error}); restore it from a copy: the data cannot be opened without it") from None
    _check(birth, config, path)
    return birth


def removed_text(config: Config) -> str:
    """For whoever starts a node that was removed from its cluster."""
    return (
        f"data: node {config.cluster.node} was removed from the cluster, and the data in {config.data} is of no use any more; to have this "
        "machine back in it, name an empty folder, and add it under a new number ('polynya cluster add')"
    )


def journal_id_of(cluster_id: str, core: int) -> int:
    """Which journal a core's is, so that a folder in the wrong place is noticed."""
    return int(cluster_id[:14] or "0", 16) << 8 | core


def _bear(path: Path, config: Config, learned: DiscoveredCluster) -> NodeIdentity:
    if learned.removed_by:
        raise ConfigError(
            f"cluster.node: number {config.cluster.node} was removed from the cluster, says node {learned.removed_by}, and is never given again; "
            "add this machine under a new number ('polynya cluster add')"
        )
    strangers = strangers_in(path.parent)
    if RESTORING in strangers:
        raise ConfigError(f"data: a restore into {path.parent} was interrupted; give the command again, or remove the folder")
    if strangers:
        raise ConfigError(
            f"data: {path.parent} is not empty ({', '.join(strangers[:5])}) and has no {FILE}; name an empty or a new folder, "
            f"or, if this is a node's data, restore {FILE} from a copy"
        )
    return bear(path, config, learned)


def bear(path: Path, config: Config, learned: DiscoveredCluster) -> NodeIdentity:
    """Write the identity of a folder in which nothing is to be kept."""
    groups, history = config.groups or learned.groups or GROUPS_DEFAULT, max(config.cluster.history, learned.history)
    birth = new_birth(config, config.cluster.id or secrets.token_hex(16), groups, history)
    birth = msgspec.structs.replace(birth, provisional=bool(config.cluster.others))
    write_json(path, birth)
    sync_folder(path.parent.parent)
    return birth


def new_birth(config: Config, cluster_id: str, groups: int, history: int = 1) -> NodeIdentity:
    """What a folder with these settings becomes."""
    cluster = config.cluster
    return NodeIdentity(
        cluster_id=cluster_id,
        node=cluster.node,
        nodes=() if cluster.joins else tuple(node.id for node in _nodes(config)),
        zones=() if cluster.joins else tuple(node.zone for node in _nodes(config)),
        readers=() if cluster.joins else tuple(sorted(node.id for node in cluster.nodes if node.reader)),
        replicas=cluster.replicas if cluster.is_on else 0,
        history=history,
        groups=groups,
        cores=config.cores or min(cores_default(), groups),
        created_ms=time.time_ns() // 1_000_000,
    )


def strangers_in(folder: Path, beside: frozenset[str] = frozenset()) -> list[str]:
    """What is in a folder that is to become a data folder, and keeps it from that."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in _BEFORE_BIRTH | beside and entry.name[0] != ".")


def _check(birth: NodeIdentity, config: Config, path: Path) -> None:
    check_format(f"{path}: the data", birth.format_version, older=OLDER)
    _check_cluster(birth, config, path)
    if config.cores is not None and config.cores > birth.groups:
        raise ConfigError(
            f"cores: {config.cores} are more than the {birth.groups} groups of the data in {path.parent}, and a core without a group would have "
            f"nothing to do; start with at most --cores {birth.groups}"
        )
    if config.groups is not None and config.groups != birth.groups:
        raise ConfigError(
            f"groups: the data in {path.parent} has {birth.groups} groups, and a stream's group is fixed for life; "
            f"start with --groups {birth.groups} (or without the setting)"
        )


def _nodes(config: Config) -> list[ClusterNode]:
    return sorted(config.cluster.voting, key=lambda node: node.id)


def _check_cluster(birth: NodeIdentity, config: Config, path: Path) -> None:
    """The data stays with the cluster, and in the place in it, that it was born in."""
    cluster = config.cluster
    if not cluster.is_on and birth.node:
        raise ConfigError(
            f"cluster: the data in {path.parent} is that of node {birth.node} of the cluster {birth.cluster_id}, and is worth nothing alone; "
            "start it with the settings of that cluster"
        )
    if cluster.is_on and not birth.node:
        raise ConfigError(
            f"cluster: the data in {path.parent} was written by a node by itself, and the other nodes know nothing of it; start the cluster on "
            "new folders and copy the streams ('polynya import')"
        )
    if cluster.is_on and birth.cluster_id != cluster.id:
        raise ConfigError(f"cluster.id: the data in {path.parent} belongs to the cluster {birth.cluster_id}; this is {cluster.id}")
    if birth.node != cluster.node:
        raise ConfigError(f"cluster.node: the data in {path.parent} is that of node {birth.node}; this is node {cluster.node}")


def write_json(path: Path, content: msgspec.Struct) -> None:
    """The file has what it had or all of this, also after a power cut."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
