"""Messages between the cores of a node, over Unix domain sockets in a directory that only the node's user may enter.

Each core listens on `core-N.sock` and keeps one connection to every other core, for what it asks of it: calls (a reply each,
pipelined), one-way messages, and subscriptions (a stream of messages back). Two cores that ask each other hold two connections, so
the asking side never stops reading answers, and a flood one way cannot lock the other.

Invariants: `done` of a call is called exactly once, and `on_end` of a subscription exactly once unless it is cancelled. Frames of one
connection arrive in the order they were sent, whole. Everything queued is bounded: over the bound a call fails at once with
Unavailable, and a subscription that lags is ended by the side that pushes. A connection that breaks fails what was handed to the
socket with OutcomeUnknown and the rest with Unavailable.

It does not retry calls, encrypt, or interpret bodies: they are opaque bytes.

A frame is `body length u32 | type u8 | kind u16 | id u64`, little-endian, then the body. The first frame of a connection is HELLO: kind is
the protocol's version, id the asking core, the body the start id of the node.
"""

from polynya.transport.door import Push, Reply
from polynya.transport.peer import Subscription
from polynya.transport.transport import Transport

__all__ = ["Push", "Reply", "Subscription", "Transport"]
