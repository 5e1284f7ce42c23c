"""The handshake between nodes: the `Hello` that both sides send, and its validation."""

from __future__ import annotations

import struct

import msgspec

from polynya.base.msgpack import UNREADABLE

# The oldest and the newest protocol between nodes that this release supports. 2: appends of a group
# are batched. 3: requests for a leader are forwarded. 4: names have buckets of one to three
# characters. 5: a request may name the span that it is a part of (TRACED). Releases that support
# only 1 to 3 keep format 1 (base/formats.py).
PROTOCOL_MIN = 4
PROTOCOL_MAX = 5
MAGIC = b"polynya\x01"
# magic, core, lane: in clear text before TLS, so that the target core does the handshake
PREAMBLE = struct.Struct("<8sHB5x")
CORES_MAX = 256  # limit for a node, see `address`
LANE_ASK = 0  # calls, subscriptions, bulk data
LANE_RAFT = 1  # Raft messages only: no large message delays a heartbeat


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """A core of a node introduces itself to a core of another node. Fields are only appended, with
    defaults."""

    low: int  # the protocols that it supports
    high: int
    cluster: str
    history: int  # incremented when a restore or an accepted loss starts a new history
    groups: int
    node: int
    core: int
    cores: int
    start: str  # this incarnation of the node
    release: str = ""
    level: int = 0  # the newest log level that it supports (base/levels.py); 0 means 1
    works_at: int = 0  # the highest log level that a group there has reached
    asks: bool = False  # discovery only: the peer answers and closes the connection
    removed: int = 0  # sent to a removed node: the epoch of a map without it (docs/decisions/0017)
    journal: int = 0  # number of the core's journal; 0: not reported
    opened: int = 0  # end of the journal when this incarnation of the core started
    incarnation: int = 0  # incarnation of the core, a random number
    lacks: str = ""  # sent to a node with a stale journal: what it has lost (docs/decisions/0023)
    epoch: int = 0  # of the newest cluster map that it knows


encode_hello = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Hello)


def decode_hello(body: bytes) -> Hello:
    """Decode a `Hello`. Raises msgspec.DecodeError."""
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise msgspec.DecodeError(str(error)) from None


def judge(own: Hello, other: Hello, *, expected: int, certified: tuple[str, ...] | None) -> str:
    """Return why the other core must be rejected; empty if it is accepted. `expected`: the required
    node. `certified`: the names in its certificate; None without TLS."""
    if max(own.low, other.low) > min(own.high, other.high):
        return (
            f"it speaks protocol {_range(other)}, this node {_range(own)} (release "
            f"{other.release or 'unknown'} and {own.release}); "
            f"{_step(min(own.high, other.high))}"
        )
    if max(other.level, 1) < own.works_at:
        return (
            f"its release ({other.release or 'unknown'}) supports log levels up to "
            f"{max(other.level, 1)}, the cluster works at level "
            f"{own.works_at}: start it with release {own.release} or newer"
        )
    if max(own.level, 1) < other.works_at:
        return (
            f"the cluster works at level {other.works_at}, release {own.release} of this node "
            "supports log levels up to "
            f"{max(own.level, 1)}: start this node with release {other.release} or newer"
        )
    if other.cluster != own.cluster:
        return (
            f"it belongs to the cluster {other.cluster}, this node to {own.cluster}; compare "
            "cluster.id"
        )
    if other.history != own.history:
        return (
            f"it holds history {other.history} of the cluster, this node {own.history}: one of "
            "them missed a restore; restart the one with the lower "
            "number on an empty data directory"
        )
    if other.node != expected:
        return f"it is node {other.node}, but node {expected} was expected; compare cluster.nodes"
    if other.groups != own.groups:
        return (
            f"it has {other.groups} groups, this node {own.groups}; the number must be the same "
            "on all nodes of a cluster"
        )
    if not 0 <= other.core < other.cores <= CORES_MAX:
        return f"it claims to be core {other.core} of {other.cores}"
    if certified is not None and node_name(other.node) not in certified:
        return (
            f"its certificate is for {', '.join(certified) or 'no DNS name'}, not for "
            f"{node_name(other.node)}"
        )
    return ""


def stale_copy_text(node: int, lacks: str) -> str:
    """Return the reason for rejecting a node with a stale journal."""
    return (
        f"node {node} returned with a stale copy of its data ({lacks}): restart it on an empty "
        "data directory"
    )


def node_name(node: int) -> str:
    """Return the name that a node's certificate must contain."""
    return f"node-{node}.polynya.internal"


def address(node: int, core: int) -> int:
    """Return the address of a core of another node. The address of a local core is its bare
    number."""
    return node << 8 | core


def node_of(address: int) -> int:
    """Return the node of an address; 0 for a local core."""
    return address >> 8


def _step(newest: int) -> str:
    """Return the remedy for two nodes if one supports at most the protocol `newest`."""
    if newest < PROTOCOL_MIN:
        return (
            "the older one keeps its data in format 1: start the new release on empty data "
            "directories, and copy the streams with 'polynya import'"
        )
    return "upgrade one release at a time"


def _range(hello: Hello) -> str:
    return f"{hello.low}" if hello.low == hello.high else f"{hello.low} to {hello.high}"
