"""The cluster settings of a node: the nodes it is born with or joins, and the certificates of the
links between them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

NODE_MAX = 250
NODES_MAX = 63  # nodes in one list
NODE_KEYS = ("id", "peer", "http")
NODE_KEYS_MORE = ("zone", "role")
ROLES = ("voter", "reader")
REPLICAS = (1, 3, 5)
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BRACKETED = r"\[[0-9A-Fa-f:.%\w]+\]"
_HOST = re.compile(rf"{_BRACKETED}|[\w.:%-]+", re.ASCII)
_URL = re.compile(
    rf"https?://(?:{_BRACKETED}|[\w.%-]+)(?::(\d{{1,5}}))?/?", re.ASCII | re.IGNORECASE
)
_ZONE = re.compile(r"[\w.-]{1,40}", re.ASCII)

Given = TypeVar("Given")
Made = TypeVar("Made")


class ClusterNode(msgspec.Struct, frozen=True):
    """One node. `peer` is HOST:PORT of its peer port, `http` its URL for clients, `zone` its
    failure domain. A `reader` is a read replica: it follows every group and votes in none."""

    id: int
    peer: str
    http: str
    zone: str = ""
    reader: bool = False

    def __str__(self) -> str:
        more = f"={self.zone}=reader" if self.reader else f"={self.zone}" if self.zone else ""
        return f"{self.id}={self.peer}={self.http}{more}"

    @property
    def peer_address(self) -> tuple[str, int]:
        host, _, port = self.peer.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster settings; `id` is empty on a standalone node."""

    id: str = ""
    node: int = 0
    nodes: tuple[ClusterNode, ...] = ()
    replicas: int = 3
    history: int = 1
    join: bool = False
    replace_after: float = 0.0
    listen: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    unsafe_no_tls: bool = False
    leader_follows_writers: bool = True

    @property
    def is_on(self) -> bool:
        return bool(self.id or self.node or self.nodes)

    @property
    def own(self) -> ClusterNode:
        """Return this node's entry in the list."""
        return next(node for node in self.nodes if node.id == self.node)

    @property
    def lists_itself(self) -> bool:
        """Return True if the list names this node."""
        return any(node.id == self.node for node in self.nodes)

    @property
    def others(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.id != self.node]

    @property
    def voting(self) -> list[ClusterNode]:
        """Return the list without its read replicas."""
        return [node for node in self.nodes if not node.reader]

    @property
    def joins(self) -> bool:
        """Return True if this node joins a cluster that others bootstrap."""
        return self.join or any(node.reader for node in self.nodes if node.id == self.node)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return the host and port of this node's peer port."""
        return (
            ClusterNode(0, self.listen, "").peer_address if self.listen else self.own.peer_address
        )


def parse_cluster_id(text: str) -> str:
    """Return a cluster id of 32 hexadecimal digits, in lower case."""
    if not _ID.fullmatch(text.strip().lower()):
        raise ValueError(
            "expected 32 hexadecimal digits, the same on every node: of a cluster with data, the "
            "cluster_id in node.json of any data folder; "
            "for a new cluster, 'openssl rand -hex 16' makes some"
        )
    return text.strip().lower()


def parse_nodes(text: str) -> tuple[ClusterNode, ...]:
    """Parse `ID=HOST:PORT=URL[=ZONE[=reader]]`, separated by commas. A node without a zone but with
    a role has an empty zone."""
    parts = filter(None, (part.strip() for part in text.split(",")))
    return tuple(_each(_parse_node, list(parts)))


def _parse_node(part: str) -> ClusterNode:
    pieces = part.split("=", 4)
    if len(pieces) < 3:
        raise ValueError(
            f"{part!r}: expected ID=HOST:PORT=URL, as 1=10.0.0.1:4439=http://10.0.0.1:4437, with "
            "commas between nodes"
        )
    return checked_node(*(piece.strip() for piece in pieces))


def _each(make: Callable[[Given], Made], given: Sequence[Given]) -> list[Made]:
    """Apply `make` to each item. Raise ValueError with the problems of all that fail."""
    made, problems = [], []
    for each in given:
        try:
            made.append(make(each))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return made


def parse_address(text: str) -> str:
    """Parse `HOST:PORT` or an empty text."""
    if text.strip() and not _is_address(text.strip()):
        raise ValueError("expected HOST:PORT")
    return text.strip()


def nodes_text(tables: Any) -> str:
    """Return the text for `parse_nodes` from the `[[cluster.nodes]]` of a TOML file. Raise
    ValueError that names each faulty node."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("expected tables: [[cluster.nodes]], each with id, peer and http")
    return ",".join(_each(_table_text, list(enumerate(tables, 1))))


def cluster_problems(cluster: ClusterConfig, origins: Mapping[str, str]) -> Iterable[str]:
    """Yield the contradictions between settings that are each well-formed."""
    if not cluster.is_on:
        set_ = [name for name in ("listen", "ca", "cert", "key") if getattr(cluster, name)]
        if set_:
            yield (
                f"cluster.{set_[0]} ({origins['cluster.' + set_[0]]}): there is no cluster; set "
                "cluster.id, cluster.node and cluster.nodes too"
            )
        return
    missing = [name for name in ("id", "node", "nodes") if not getattr(cluster, name)]
    if missing:
        yield (
            "cluster.id, cluster.node and cluster.nodes go together; not set: "
            f"{', '.join('cluster.' + name for name in missing)}"
        )
    if cluster.nodes:
        yield from _node_problems(cluster, f"cluster.nodes ({origins['cluster.nodes']})")
    if cluster.nodes and cluster.node and not cluster.lists_itself:
        yield f"cluster.node ({origins['cluster.node']}): {cluster.node} is not in cluster.nodes"
    if cluster.replicas not in REPLICAS:
        yield (
            f"cluster.replicas ({origins['cluster.replicas']}): {cluster.replicas}: expected 1, 3 "
            "or 5; 3 tolerates the loss of one node, 5 of two"
        )
    if cluster.join and cluster.lists_itself and not cluster.others:
        yield (
            f"cluster.join ({origins['cluster.join']}): cluster.nodes has to name nodes of the "
            "cluster to be joined beside this one"
        )
    if any((cluster.ca, cluster.cert, cluster.key)) and not all(
        (cluster.ca, cluster.cert, cluster.key)
    ):
        yield "cluster.ca, cluster.cert and cluster.key go together; one of them is not set"


def _node_problems(cluster: ClusterConfig, where: str) -> Iterable[str]:
    """Yield the problems of the list of nodes; `where` names the setting."""
    for what in ("id", "peer", "http"):
        values = [str(getattr(node, what)) for node in cluster.nodes]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            yield f"{where}: two nodes have the {what} {twice[0]}"
    doors = {urlsplit(node.http).netloc: node.id for node in cluster.nodes}
    for node in cluster.nodes:
        if node.peer in doors:
            yield (
                f"{where}: the peer port of node {node.id}, {node.peer}, is also the http address "
                f"of node {doors[node.peer]}; use two ports"
            )
    if not cluster.voting:
        yield f"{where}: all of them are read replicas; a cluster needs nodes that vote"
    if len(cluster.nodes) > NODES_MAX:
        yield f"{where}: {len(cluster.nodes)} nodes; at most {NODES_MAX}"


def checked_node(number: str, peer: str, http: str, zone: str = "", role: str = "") -> ClusterNode:
    """Return the node. Raise ValueError with the problem."""
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= NODE_MAX):
        raise ValueError(f"{number!r}: a node's id is a number from 1 to {NODE_MAX}")
    if not _is_address(peer):
        raise ValueError(f"node {number}: {peer!r}: expected the HOST:PORT of its peer port")
    url = _URL.fullmatch(http)
    if url is None or not _is_port(url[1] or "80"):
        raise ValueError(
            f"node {number}: {http!r}: expected the URL that clients reach it at, as "
            "http://10.0.0.1:4437"
        )
    if zone and not _ZONE.fullmatch(zone):
        raise ValueError(
            f"node {number}: {zone!r}: a zone's name has letters, digits, '-', '_' and '.', at "
            "most 40"
        )
    if role and role not in ROLES:
        raise ValueError(
            f"node {number}: {role!r}: a node's role is reader (a read replica) or voter"
        )
    return ClusterNode(int(number), peer, http.rstrip("/"), zone, role == "reader")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return _HOST.fullmatch(host) is not None and _is_port(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535


def _table_text(numbered: tuple[int, dict[str, Any]]) -> str:
    position, table = numbered
    known = (*NODE_KEYS, *NODE_KEYS_MORE)
    number = table.get("id", position)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            raise ValueError(
                f"node {number}: {key}: unknown"
                + (
                    f"; did you mean {near[0]}?"
                    if near
                    else (
                        "; a node has id, peer, http, zone, role, and settings of other kinds go "
                        "before the first [table]"
                    )
                )
            )
    missing = [key for key in NODE_KEYS if key not in table]
    if missing:
        raise ValueError(f"node {number}: {missing[0]} is missing; each has id, peer and http")
    if any("," in str(value) or "=" in str(value) for value in table.values()):
        raise ValueError(f"node {number}: no value has ',' or '=' in it")
    zone, role = table.get("zone", ""), table.get("role", "")
    return "{id}={peer}={http}".format(**table) + (
        f"={zone}={role}" if role else f"={zone}" if zone else ""
    )
