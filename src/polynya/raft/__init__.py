"""Raft consensus for one group. Pure code: no I/O, clock, randomness or asyncio; time and a random
seed are inputs.

A `Raft` is one replica of one group. Its inputs return at once: messages, time, proposals, durable
writes, applied entries, reads and membership changes. At the end of a turn, `take` returns the
effects: what to write, send, apply and answer. The caller gathers the effects of all groups of a
core into one write with one fsync, and one frame for each peer. Messages that require a durable
write are held back here, so every message that `take` returns may leave at once. No peer can see an
answer too early.

Features:

* elections with pre-vote and check-quorum, pipelined and bounded replication;
* linearizable reads on any member, by lease or by a round of heartbeats;
* chunked snapshots, learners and readers, joint membership changes;
* leadership transfer, and quiescence of idle groups.
docs/formats/raft.md describes the messages, the journal records and the invariants.

This package does not interpret commands. It keeps only the bytes that it still has to send or
apply. It does not detect failed nodes (`peer_lost` reports them), and it does not choose leaders or
members.
"""

from polynya.raft.codec import decode_message, encode_block, encode_message, group_of_message
from polynya.raft.configuration import Configuration, decode_configuration, encode_configuration
from polynya.raft.effects import (
    ChunkArrived,
    ChunkWanted,
    Effects,
    EntryLoad,
    PeerStatus,
    ProposalRefused,
    Role,
    Status,
)
from polynya.raft.messages import (
    Append,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Message,
    Snapshot,
    SnapshotChunk,
)
from polynya.raft.progress import Mode
from polynya.raft.raft import Raft
from polynya.raft.recovery import Recovery, RestoredMember
from polynya.raft.settings import NEVER, Settings
from polynya.raft.state import Identity

__all__ = [
    "NEVER",
    "Append",
    "ChunkArrived",
    "ChunkWanted",
    "Configuration",
    "Effects",
    "Entry",
    "EntryKind",
    "EntryLoad",
    "HardState",
    "Heartbeat",
    "Identity",
    "Message",
    "Mode",
    "PeerStatus",
    "ProposalRefused",
    "Raft",
    "Recovery",
    "RestoredMember",
    "Role",
    "Settings",
    "Snapshot",
    "SnapshotChunk",
    "Status",
    "decode_configuration",
    "decode_message",
    "encode_block",
    "encode_configuration",
    "encode_message",
    "group_of_message",
]
