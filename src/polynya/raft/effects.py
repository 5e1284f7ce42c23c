"""The effects that the caller carries out for a group, and the enums for roles and refusals."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from polynya.raft.configuration import Configuration
from polynya.raft.messages import Entry, HardState, Message, Snapshot


class Role(IntEnum):
    FOLLOWER = 0  # also learners and readers
    PRECANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class ProposalRefused(IntEnum):
    """The reason why a proposal was refused. A refused proposal has no effect."""

    NOT_LEADER = 1
    # a leadership transfer is in progress: another leader follows, or this one resumes
    HANDING_OVER = 2
    OVERLOADED = 3  # a limit is exceeded
    NOT_READY = 4  # no entry of the leader's own term is committed yet
    CHANGE_IN_FLIGHT = 5
    NOT_CAUGHT_UP = 6  # a new voter is not a learner that is close to the end of the log
    NOT_A_VOTER = 7
    INVALID = 9
    JUST_LEFT = 10  # a message from the earlier membership of a new member may still be in flight


class ChunkWanted(msgspec.Struct, frozen=True, gc=False):
    """Read this part of a snapshot and pass it to `chunk`, or call `chunk_missing`."""

    to: int
    snapshot: Snapshot
    offset: int
    length: int


class ChunkArrived(msgspec.Struct, frozen=True, gc=False):
    """Store this part of a snapshot; offset 0 starts a new one."""

    snapshot: Snapshot
    offset: int
    data: bytes


class EntryLoad(msgspec.Struct, frozen=True, gc=False):
    """Read entries `begin` to `end` (half-open) from the journal and pass them to `loaded`. Return
    as many as `bytes_max` holds, but at least one."""

    begin: int
    end: int
    bytes_max: int


class Effects(msgspec.Struct):
    """Pending effects of one group. Carry them out in this order:

    1. Write `reset`, `hard_state` and `entries` in this turn (entries may replace earlier ones).
      Call `persisted(ticket)` when the write is
       durable. Writes of a group become durable in the order of their tickets.
    2. Send `messages`. They may leave before that write.
    3. Apply `committed`, then call `applied_to(index)`. The local write may still be in flight,
      because a majority already has the entries.
    4. Answer `reads` from the applied state; refuse `reads_failed`.
    5. `changed` reports a new role, term or leader. Proposals of an older term then have an unknown
      outcome.
    6. The other fields concern snapshots and old entries, and are not urgent.
    """

    group: int
    ticket: int = 0  # 0: nothing to write
    reset: Snapshot | None = None
    hard_state: HardState | None = None
    entries: list[Entry] = []
    messages: list[Message] = []
    committed: list[Entry] = []
    reads: list[Any] = []  # tokens
    reads_failed: list[Any] = []
    changed: bool = False
    install: Snapshot | None = (
        # all chunks have arrived: install it durably, then call `installed` or `install_failed`
        None
    )
    chunks_wanted: list[ChunkWanted] = []
    chunks_arrived: list[ChunkArrived] = []
    load: EntryLoad | None = None


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    match: int
    state: str
    heard_ms: int
    lost: bool


class Status(msgspec.Struct, frozen=True):
    """The state of a member, for operators and metrics."""

    group: int
    role: Role
    term: int
    leader: int
    commit: int
    applied: int
    durable: int
    last: int
    quiescent: bool
    peers: dict[int, PeerStatus]
    configuration: Configuration  # the one in effect
    settled: bool  # it is committed, and not joint
    # without a vote after a disk loss: the members that must answer first
    forgotten: tuple[int, ...] | None = None
