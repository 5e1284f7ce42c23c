"""Replicas: consensus joined to the state machine, for all groups of one core (pure).

A proposal becomes an entry with a term and an index. The engine makes it durable and reports so.
The entry is then committed and applied in index order, and its reply is an effect. With one voter,
durable means committed. Nothing here is visible before it is durable: the machine changes only in
`commit`.

Invariant: `applied_index <= last_index`, and the entries between them are in flight, in order.
"""

from polynya.replica.core_replicas import AppendRun, CoreReplicas, Group, PendingEntry

__all__ = ["AppendRun", "CoreReplicas", "Group", "PendingEntry"]
