"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then changes only.

A session belongs to the connection that created it, and ends with it. A broker has several cores,
and a client that connects again may reach another one, so an id that other connections could use
would often be unknown there. Clients begin a new session after a lost connection anyway. So no
request of another principal can reach a session, and a client that is gone holds no memory. An id
that its connection does not hold gets FETCH_SESSION_ID_NOT_FOUND, and the client fetches in full.
A connection has one session: another one replaces it.

The sessions of a core share slots and a budget of partitions (`base/limits.py`). If these are
used up, a session that was unused for two minutes makes room; else, as in Kafka, one that is older
than two minutes and smaller than the new one. Without such a session the new one is declined: its
response has session 0, and the client continues with full fetches.

`session.py` is the machine of one session, without time or I/O. Each fetch looks up its topics and
checks the caller's rights again: a session holds names, offsets and the ends that it has told.
"""
