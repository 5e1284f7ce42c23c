"""One group's agreement. Pure: no I/O, no clock, no randomness, no asyncio; time and a seed are inputs.

A `Raft` is one member of one group. Its inputs return at once: a message, time, proposals, what became durable or applied, reads, a change of
members. At the end of a turn `take` gives what all of them led to: what to write, what to send, what to apply, what to answer. The
outside gathers that over all groups of a core into one write with one fsync, and one frame to each peer. What a message needs to be
durable is held back here, so that all that comes out may leave at once: nobody outside can answer too early.

The pieces: elections with pre-vote and check-quorum, replication that is pipelined and bounded, reads by lease or by a round of heartbeats on
any member, snapshots in chunks, learners and readers, joint changes of membership, hand-over, sleep for groups with nothing to do.
Messages, what the journal keeps, and the invariants: docs/formats/raft.md.

It does not know what commands mean, keeps no bytes but those it still has to send or apply, does not discover that nodes are gone (`peer_lost`
tells), and does not decide who should lead or belong: it is told.
"""

from polynya.raft.codec import decode_message, encode_block, encode_message, group_of_message
from polynya.raft.configuration import Configuration, decode_configuration, encode_configuration
from polynya.raft.effects import ChunkArrived, ChunkWanted, Effects, EntryLoad, PeerStatus, ProposalRefused, Role, Status
from polynya.raft.messages import Append, Entry, EntryKind, HardState, Heartbeat, Message, Snapshot, SnapshotChunk
from polynya.raft.progress import Mode
from polynya.raft.raft import Identity, Raft
from polynya.raft.recovery import Recovery, RestoredMember
from polynya.raft.settings import NEVER, Settings

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
