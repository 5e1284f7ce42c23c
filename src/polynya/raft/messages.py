"""Messages between members, log entries and the hard state: plain data (docs/formats/raft.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from polynya.raft.configuration import Configuration

# Messages from other nodes are validated when decoded. Indexes and terms grow by one, so no valid
# number exceeds this.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Node = Annotated[int, msgspec.Meta(ge=1, le=2**32)]
TERM_STEP_MAX = 2**40  # no member is further ahead, even after centuries of elections


class EntryKind:
    """Kinds of journal frames. Log entries are commands, no-ops and configurations."""

    COMMAND = 1
    NOOP = 3
    CONFIGURATION = 4
    HARD_STATE = 5
    RESET = 6
    CONFIGURED = 7
    DROPPED = 8


class Entry(msgspec.Struct, gc=False):
    """One log entry. A proposer may pass a subclass with its own fields and gets the same object
    back once it is committed. `propose` sets term, index and group; the journal sets `position`."""

    payload: bytes
    kind: int = EntryKind.COMMAND
    term: int = 0
    index: int = 0
    group: int = 0
    position: int = 0


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The durable promises of a member: the newest term seen, and its vote in that term (0: none).

    `amnesiac`: it lost its disk and may have made other promises. `learning`: it is a new replica
      in a group that may count on what a
    predecessor held. `group_is_new`: it found that its group is new, and has seen no term since.
    """

    term: int = 0
    vote: int = 0
    amnesiac: bool = False
    learning: bool = False
    group_is_new: bool = False


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state up to an index, stored by the caller. `identity` differs if the bytes differ, for
    example a checksum."""

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
    """Entries that follow `prev_index`. Appends of one turn to several members share the list."""

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
    quiesce: bool = False


class HeartbeatAnswer(Message, frozen=True, tag=4):
    context: Natural = 0
    held: Number = 0
    match: Number = 0
    quiescent: bool = False


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


class RecoverVote(Message, frozen=True, tag=12):
    """A query by a member without data. `blank`: it is new or lost its disk, and has done nothing
    since. `found`: it knows that the group is new, and asks which members know that too."""

    blank: bool = False
    found: bool = False


class RecoverVoteAnswer(Message, frozen=True, tag=13):
    """The answer to `RecoverVote`. `members`: the voters and future voters, as far as the sender
    knows. `amnesiac`: the sender itself still awaits answers. `configurations`: the last one known
    to be committed and all after it, each with the index where it begins."""

    blank: bool = False
    members: tuple[Node, ...] = ()
    amnesiac: bool = False
    configurations: tuple[tuple[Number, Configuration], ...] = ()
