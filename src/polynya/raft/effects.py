"""What the outside must do for a group, and the words for its part and for what it declines."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from polynya.raft.configuration import Configuration
from polynya.raft.messages import Entry, HardState, Message, Snapshot


class Role(IntEnum):
    FOLLOWER = 0  # learners and readers too
    PRECANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class ProposalRefused(IntEnum):
    """Nothing was taken, and nothing has happened."""

    NOT_LEADER = 1
    HANDING_OVER = 2  # a hand-over is under way: soon there is another leader, or this one goes on
    OVERLOADED = 3  # over a bound
    NOT_READY = 4  # nothing of the own term is committed yet
    CHANGE_IN_FLIGHT = 5
    NOT_CAUGHT_UP = 6  # a voter to be is no learner that is close to the end of the log
    NOT_A_VOTER = 7
    INVALID = 9
    JUST_LEFT = 10  # what a member to be said when it was one before may still be on its way


class ChunkWanted(msgspec.Struct, frozen=True, gc=False):
    """Read this part of a snapshot and give it to `chunk`, or say `chunk_missing`."""

    to: int
    snapshot: Snapshot
    offset: int
    length: int


class ChunkArrived(msgspec.Struct, frozen=True, gc=False):
    """Keep this part of a snapshot; offset 0 begins anew."""

    snapshot: Snapshot
    offset: int
    data: bytes


class EntryLoad(msgspec.Struct, frozen=True, gc=False):
    """Read entries `begin` to `end` (half-open) back from the journal, as many as `bytes_max` holds but at least one, and give them to `loaded`."""

    begin: int
    end: int
    bytes_max: int


class Effects(msgspec.Struct):
    """What one group has for the outside since it was last asked. In this order:

    1. `reset`, `hard_state` and `entries` go into this turn's write (entries as they are: they may replace earlier ones). When it is durable,
       `persisted(ticket)`. Writes of a group become durable in the order of their tickets.
    2. `messages` may leave at once, before that write.
    3. `committed` entries are applied, then `applied(index)` is said. Their local write may still be under way: a majority has them.
    4. `reads` are answered from what is applied by then; `reads_failed` are refused.
    5. `changed`: part, term or known leader are not what they were. Proposals of an older term have an unknown outcome.
    6. The rest concerns snapshots and old entries, and may take its time.
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
    install: Snapshot | None = None  # all of it has arrived: install it durably, then `installed` or `install_failed`
    chunks_wanted: list[ChunkWanted] = []
    chunks_arrived: list[ChunkArrived] = []
    load: EntryLoad | None = None


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    match: int
    state: str
    heard_ms: int
    lost: bool


class Status(msgspec.Struct, frozen=True):
    """For operators and metrics."""

    group: int
    role: Role
    term: int
    leader: int
    commit: int
    applied: int
    durable: int
    last: int
    asleep: bool
    peers: dict[int, PeerStatus]
    configuration: Configuration  # the one in effect
    settled: bool  # and committed, and not joint
    forgotten: tuple[int, ...] | None = None  # it has nothing of what it may have promised, and no voice; who has to tell it first
