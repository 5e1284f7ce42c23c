"""Messages between cores: those of a node over Unix domain sockets in a directory that only the node's user may enter, and those of
different nodes over TCP.

Each core listens on `core-N.sock` and keeps one connection to every other core, for what it asks of it: calls (a reply each,
pipelined), one-way messages, and subscriptions (a stream of messages back). Two cores that ask each other hold two connections, so
the asking side never stops reading answers, and a flood one way cannot lock the other.

Invariants: `done` of a call is called exactly once, and `on_end` of a subscription exactly once unless it is cancelled. Frames of one
connection arrive in the order they were sent, whole. Everything queued is bounded: over the bound a call fails at once with
Unavailable, and a subscription that lags is ended by the side that pushes. A connection that breaks fails what was handed to the
socket with OutcomeUnknown and the rest with Unavailable.

Between nodes: each node has one peer port that its cores share. Who connects says in clear which core is meant (`port`), then TLS
where there are certificates, then both greet (`hello`): cluster, node, cores, protocols. Strangers are refused with the reason, in both logs. A
connection that is silent for a second is dropped (`pulse`). Messages of groups have a connection of their own (`lane`), so
that no call or snapshot goes before a heartbeat, and never wait: over the bound the oldest are dropped.

It does not retry calls, or interpret bodies: they are opaque bytes.

A frame is `body length u32 | type u8 | kind u16 | id u64 | CRC-32C u32`, little-endian, then the body. The CRC is that of all the rest where
TCP alone carries it, else 0. The first frame of a connection is HELLO: between cores of a node kind is the protocol's version, id the
asking core, the body the start id of the node; between nodes the body is a `Hello`, which WELCOME or REFUSED answers.
"""

from polynya.transport.dialing import Dialer, PeerTls, report_lost
from polynya.transport.handshake import PROTOCOL_MAX, PROTOCOL_MIN, Hello, address, node_name, node_of
from polynya.transport.peer import PeerSubscription
from polynya.transport.peer_journal_positions import JournalReport, PeerJournalPositions
from polynya.transport.peer_listener import PushStream, Reply
from polynya.transport.raft_links import RaftLinks
from polynya.transport.transport import PeerCluster, Transport

__all__ = [
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "Dialer",
    "Hello",
    "JournalReport",
    "PeerCluster",
    "PeerJournalPositions",
    "PeerSubscription",
    "PeerTls",
    "PushStream",
    "RaftLinks",
    "Reply",
    "Transport",
    "address",
    "node_name",
    "node_of",
    "report_lost",
]
