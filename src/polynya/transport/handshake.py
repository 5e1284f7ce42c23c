"""Who is at the other end of a connection between nodes: what both say first, and what each makes of it."""

from __future__ import annotations

import struct

import msgspec

from polynya.base.msgpack import UNREADABLE

# The oldest protocol between nodes that this release speaks, and the newest. 2: appends of a group travel together; 3: what is for a leader is
# passed on to it; 4: names have buckets of one to three characters. Releases that know 1 to 3 alone keep format 1 (base/formats.py).
PROTOCOL_MIN = 4
PROTOCOL_MAX = 4
MAGIC = b"polynya\x01"
PREAMBLE = struct.Struct("<8sHB5x")  # magic, core, lane: in clear, before TLS, so that the core that was meant does the handshake
CORES_MAX = 256  # of a node: see `address`
LANE_ASK = 0  # calls, subscriptions, bulk
LANE_RAFT = 1  # nothing large goes before a heartbeat


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """A core of a node, to one of another. Fields are only appended, with defaults."""

    low: int  # protocols that it speaks
    high: int
    cluster: str
    history: int  # moves on when a restore or an accepted loss starts a new one
    groups: int
    node: int
    core: int
    cores: int
    start: str  # of this life of the node
    release: str = ""
    level: int = 0  # of the rules for logs, the newest that it knows (base/levels.py); 0: as 1
    works_at: int = 0  # the highest that a group there has reached
    asks: bool = False  # it only wants to know whom it would meet: it is told, and let go
    removed: int = 0  # said to a node that was removed from the cluster: the epoch of a map that has it so (docs/decisions/0017)
    journal: int = 0  # the number of the core's journal; 0: it does not say
    opened: int = 0  # the place where that ended when this life of the core began
    life: int = 0  # of the core: random
    lacks: str = ""  # said to one whose journal is an older copy: what it has lost (docs/decisions/0023)
    epoch: int = 0  # of the newest map of the cluster that it knows


encode_hello = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Hello)


def decode_hello(body: bytes) -> Hello:
    """Raises msgspec.DecodeError."""
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise msgspec.DecodeError(str(error)) from None


def judge(own: Hello, other: Hello, *, expected: int, certified: tuple[str, ...] | None) -> str:
    """Why the other must not come in; empty when it may. `expected`: the node that it has to be. `certified`: the names in its certificate;
    None where there is no TLS."""
    if max(own.low, other.low) > min(own.high, other.high):
        return (
            f"it speaks protocol {_range(other)}, this node {_range(own)} (release {other.release or 'unknown'} and {own.release}); "
            f"{_step(min(own.high, other.high))}"
        )
    if max(other.level, 1) < own.works_at:
        return (
            f"its release ({other.release or 'unknown'}) knows the levels of logs up to {max(other.level, 1)}, the cluster works at level "
            f"{own.works_at}: start it with release {own.release} or newer"
        )
    if max(own.level, 1) < other.works_at:
        return (
            f"the cluster works at level {other.works_at}, release {own.release} of this node knows the levels of logs up to "
            f"{max(own.level, 1)}: start this node with release {other.release} or newer"
        )
    if other.cluster != own.cluster:
        return f"it belongs to the cluster {other.cluster}, this node to {own.cluster}; compare cluster.id"
    if other.history != own.history:
        return (
            f"it holds history {other.history} of the cluster, this node {own.history}: one of them missed a restore; the one with the lower number has to "
            "begin on an empty folder"
        )
    if other.node != expected:
        return f"it is node {other.node}, where node {expected} should be; compare cluster.nodes"
    if other.groups != own.groups:
        return f"it has {other.groups} groups, this node {own.groups}; the number is the same on all nodes of a cluster"
    if not 0 <= other.core < other.cores <= CORES_MAX:
        return f"it says that it is core {other.core} of {other.cores}"
    if certified is not None and node_name(other.node) not in certified:
        return f"its certificate is for {', '.join(certified) or 'nobody'}, not for {node_name(other.node)}"
    return ""


def older_text(node: int, lacks: str) -> str:
    """Why a node that comes with an older journal must not come in."""
    return (
        f"node {node} came back with an older copy of its data ({lacks}): it has forgotten what it promised, and begins on an empty folder"
    )


def node_name(node: int) -> str:
    """The name that a node's certificate is for."""
    return f"node-{node}.polynya.internal"


def address(node: int, core: int) -> int:
    """What a core of another node is called here; a core of this node is called by its bare number."""
    return node << 8 | core


def node_of(address: int) -> int:
    """0 for a core of this node."""
    return address >> 8


def _step(newest: int) -> str:
    """The way out for two nodes, of which one speaks at most the protocol `newest`."""
    if newest < PROTOCOL_MIN:
        return (
            "the older one keeps its data in format 1: start the new release on empty folders, and copy the streams with 'polynya import'"
        )
    return "upgrade one release at a time"


def _range(hello: Hello) -> str:
    return f"{hello.low}" if hello.low == hello.high else f"{hello.low} to {hello.high}"
