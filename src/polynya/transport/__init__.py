"""Messages between cores: over Unix domain sockets within a node, in a directory that only the
node's user may enter; over TCP between nodes.

Each core listens on `core-N.sock` and keeps one connection to every other core for its own
requests. Requests are calls (one reply each, pipelined), one-way messages, and subscriptions (a
stream of messages back). Two cores that send requests to each other hold two connections. Thus the
requesting side never stops reading answers, and a flood in one direction cannot deadlock the other.

Invariants: `done` of a call is called exactly once, and `on_end` of a subscription exactly once
  unless it is cancelled. Frames of one
connection arrive whole and in order. All queues are bounded. Above the bound a call fails at once
with Unavailable, and the pushing side
ends a subscription that lags. When a connection breaks, requests handed to the socket fail with
OutcomeUnknown, and the others with
Unavailable.

Each node has one peer port that its cores share. The connecting side names the target core in clear
text (`port`). A TLS handshake follows if certificates are configured. Then both sides exchange a
`Hello` (`handshake`): cluster, node, cores, protocols. A rejected peer receives the reason, and
both nodes log it. A connection that is silent for one second is dropped (`keepalive`). Raft
messages have their own connection (`lane`), so that no call or snapshot delays a heartbeat. They
never wait: above the bound the oldest are dropped.

This package does not retry calls. It does not interpret bodies, which are opaque bytes.

A frame is `body length u32 | type u8 | kind u16 | id u64 | CRC-32C u32`, little-endian, then the
body. The CRC covers everything else where only TCP protects the data, else it is 0. The first frame
of a connection is HELLO. Between cores of a node, its kind is the protocol version, its id the
sending core, and its body the start id of the node. Between nodes the body is a `Hello`, answered
by WELCOME or REFUSED.
"""

from polynya.transport.dialing import Dialer, PeerTls, report_lost
from polynya.transport.handshake import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Hello,
    address,
    node_name,
    node_of,
)
from polynya.transport.link_events import LinkEvents
from polynya.transport.node_links import NodeLinks, PeerCluster
from polynya.transport.peer import PeerSubscription
from polynya.transport.peer_journal_positions import JournalReport, PeerJournalPositions
from polynya.transport.peer_listener import PushStream, Reply
from polynya.transport.raft_links import RaftLinks, RaftReceiver
from polynya.transport.transport import Transport

__all__ = [
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "Dialer",
    "Hello",
    "JournalReport",
    "LinkEvents",
    "NodeLinks",
    "PeerCluster",
    "PeerJournalPositions",
    "PeerSubscription",
    "PeerTls",
    "PushStream",
    "RaftLinks",
    "RaftReceiver",
    "Reply",
    "Transport",
    "address",
    "node_name",
    "node_of",
    "report_lost",
]
