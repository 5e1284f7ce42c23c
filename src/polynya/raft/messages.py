"""What members tell each other, and what a log is made of: plain data (docs/formats/raft.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from polynya.raft.configuration import Configuration

# What comes from another node is checked when it is read. Indexes and terms grow by one at a time: what is beyond this is no number of a log.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Node = Annotated[int, msgspec.Meta(ge=1, le=2**32)]
TERM_STEP_MAX = 2**40  # further ahead no member can be that has not seen elections for centuries


class EntryKind:
    """Of frames in the journal. Entries are commands, no-ops and configurations."""

    COMMAND = 1
    NOOP = 3
    CONFIGURATION = 4
    HARD_STATE = 5
    RESET = 6
    CONFIGURED = 7
    DROPPED = 8


class Entry(msgspec.Struct, gc=False):
    """One entry of a log. A proposer may give a subclass with fields of its own and gets the same object back when it is committed; term,
    index and group are set by `propose`, `place` by the journal."""

    payload: bytes
    kind: int = EntryKind.COMMAND
    term: int = 0
    index: int = 0
    group: int = 0
    place: int = 0


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What must never be forgotten: the newest term seen, and who got this member's vote in it (0: nobody); whether all before it was;
    whether it was made anew in a group that may count on what one before it had; and whether it has found that its group is new, and has heard of no
    term since."""

    term: int = 0
    vote: int = 0
    forgetful: bool = False
    learning: bool = False
    unborn: bool = False


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state up to an index, as the outside keeps it. `identity` differs where the bytes differ (a checksum of them, say)."""

    index: Number
    term: Number
    configuration: Configuration
    size: Number = 0
    identity: Natural = 0


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    to: int
    sender: Node
    group: int
    term: Number


class Append(Message, frozen=True):
    """`entries` follow `prev_index`. Appends of one turn to several members share the list."""

    prev_index: Number
    prev_term: Number
    commit: Number
    entries: list[Entry]


class AppendAnswer(Message, frozen=True, tag=2):
    match: Number
    rejected: Number = 0
    hint_index: Number = 0
    hint_term: Number = 0


class Heartbeat(Message, frozen=True, tag=3):
    commit: Number
    context: Natural = 0
    sleep: bool = False


class HeartbeatAnswer(Message, frozen=True, tag=4):
    context: Natural = 0
    held: Number = 0
    match: Number = 0
    asleep: bool = False


class Vote(Message, frozen=True, tag=5):
    last_index: Number
    last_term: Number
    pre: bool = False
    forced: bool = False


class VoteAnswer(Message, frozen=True, tag=6):
    pre: bool
    granted: bool


class TimeoutNow(Message, frozen=True, tag=7):
    pass


class ReadRequest(Message, frozen=True, tag=8):
    context: Natural


class ReadAnswer(Message, frozen=True, tag=9):
    context: Natural
    index: Number


class SnapshotChunk(Message, frozen=True, tag=10):
    snapshot: Snapshot
    offset: Number
    data: bytes


class SnapshotAnswer(Message, frozen=True, tag=11):
    identity: Natural
    received: Number


class Recall(Message, frozen=True, tag=12):
    """`blank`: the sender has just been born, or lost its disk, and has done nothing since. `found`: it knows that the group is new, and wants to know
    who else does."""

    blank: bool = False
    found: bool = False


class RecallAnswer(Message, frozen=True, tag=13):
    """`members`: those that have a voice, or may get one, as far as the sender knows. `forgetful`: the sender itself has still to be told.
    `configurations`: by the index where each begins, the last that the sender knows to be committed, then all after it."""

    blank: bool = False
    members: tuple[Node, ...] = ()
    forgetful: bool = False
    configurations: tuple[tuple[Number, Configuration], ...] = ()
