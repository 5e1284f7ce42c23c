"""One replica of a replicated group: Raft joined to the machine, and the positions of its log in
the journal."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import Any

import msgspec

from polynya.raft import Entry, Raft, Role
from polynya.replica.core_replicas import Group
from polynya.replica.log import encode_bundle
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import (
    BUNDLE_BYTES,
    BUNDLE_COMMANDS_MAX,
    KAFKA_APPENDS,
    PRODUCE_BUNDLE_BYTES,
    Append,
    AppendIf,
)


class Proposal(Entry, gc=False):
    """An entry proposed on this node. `token` belongs to the proposer; None once answered."""

    command: Command | None = None
    token: Any = None


class ReceivedEntry(Entry, gc=False):
    """An entry received from a leader; keeps its decoded command until it is applied."""

    command: Command | None = None


class Bundled(Entry, gc=False):
    """Several local proposals in one entry."""

    parts: list[Proposal] = msgspec.field(default_factory=list)


Proposed = Proposal | Bundled


def parts_of(entry: Entry) -> list[Proposal]:
    """Return the local proposals in the entry, which may still await an answer."""
    return entry.parts if type(entry) is Bundled else [entry] if type(entry) is Proposal else []


def bundled(queue: list[Entry]) -> list[Entry]:
    """Combine consecutive appends into bundles, for as few entries as possible."""
    found: list[Entry] = []
    run: list[Proposal] = []
    size = 0
    for entry in queue:
        length = len(entry.payload)
        kind = type(entry.command) if isinstance(entry, Proposal) else None
        is_small = kind is Append or kind is AppendIf
        room = BUNDLE_BYTES if is_small else PRODUCE_BUNDLE_BYTES if kind in KAFKA_APPENDS else 0
        fits = 0 < length <= room
        if run and not (size + length <= room and len(run) < BUNDLE_COMMANDS_MAX):
            found.append(_joined(run))
            run, size = [], 0
        if fits:
            run.append(entry)  # type: ignore[arg-type]
            size += length
        else:
            found.append(entry)
    if run:
        found.append(_joined(run))
    return found


def _joined(run: list[Proposal]) -> Entry:
    if len(run) == 1:
        return run[0]
    return Bundled(encode_bundle([part.payload for part in run]), parts=run)


class Member:
    """A member of a Raft group and its local log.

    Invariants: applied entries are durable here, so that a hot batch's position can always be read.
      `positions` has one ascending position for
    each log entry given to the journal. `proposals` are in index order."""

    __slots__ = (
        "committed",
        "first",
        "group",
        "leading",
        "positions",
        "proposals",
        "queue",
        "raft",
        "reading",
        "since",
        "timed",
    )

    def __init__(self, group: Group, raft: Raft, entries: list[Entry]) -> None:
        """Create the member. `entries` are the log entries found in the journal at start, with
        their positions."""
        self.group = group
        self.raft = raft
        self.first = entries[0].index if entries else raft.log.last + 1  # the index of positions[0]
        self.positions = array("Q", [entry.position for entry in entries])
        self.committed: deque[Entry] = deque()  # committed but not applied: not durable here yet
        self.queue: list[Entry] = []  # proposals of this turn …
        self.since = 0.0  # … of which the oldest came at this time of the loop
        # the last index of each turn's proposals that are not applied yet, and its `since`
        self.timed: deque[tuple[int, float]] = deque()
        self.proposals: deque[Proposed] = deque()  # in the log, not answered
        # waiters of the read round that is sent with this turn
        self.reading: list[Any] | None = None
        self.leading = False  # elected, and every entry of earlier terms is applied

    def staged(self, entries: list[Entry]) -> None:
        """Record the journal positions of new entries; earlier entries with the same or larger
        indexes are dropped."""
        begin = entries[0].index
        if begin < self.first:
            self.first = begin
            del self.positions[:]
        else:
            del self.positions[begin - self.first :]
        self.positions.extend([entry.position for entry in entries])

    def installed(self, index: int) -> None:
        """Restart the log after `index`, because a snapshot replaced the group's machine."""
        self.first = index + 1
        del self.positions[:]
        self.committed.clear()

    def release(self, first: int) -> None:
        """Drop the positions of entries before `first`, which the log no longer needs."""
        if first > self.first:
            del self.positions[: first - self.first]
            self.first = first

    def first_from(self, position: int) -> int:
        """Return the index of the first log entry at or after this position."""
        return self.first + bisect_left(self.positions, position)

    def position_of(self, index: int) -> int | None:
        at = index - self.first
        return self.positions[at] if 0 <= at < len(self.positions) else None

    def can_lead(self) -> bool:
        """Report whether this leader may stamp and judge proposals: all entries of earlier terms
        are applied."""
        raft = self.raft
        return raft.role is Role.LEADER and self.group.applied_index >= raft.lead.own_term_index

    def emptied(self) -> tuple[list[Entry], list[Proposed]]:
        """Remove and return the queued proposals and the unanswered ones in the log."""
        queued, proposals = self.queue, list(self.proposals)
        self.queue = []
        self.proposals.clear()
        return queued, proposals

    def cut(self, index: int) -> list[Proposed]:
        """Remove and return the proposals from this index on, which were truncated from the log."""
        gone = [proposal for proposal in self.proposals if proposal.index >= index]
        self.proposals = deque(proposal for proposal in self.proposals if proposal.index < index)
        return gone

    def lost(self) -> list[Proposed]:
        """Remove and return the proposals of terms that this member no longer leads. It would learn
        their outcome late or never."""
        raft = self.raft
        if raft.role is Role.LEADER and all(
            proposal.term == raft.term for proposal in self.proposals
        ):
            return []
        lost = [
            proposal
            for proposal in self.proposals
            if raft.role is not Role.LEADER or proposal.term != raft.term
        ]
        self.proposals = deque(
            proposal
            for proposal in self.proposals
            if raft.role is Role.LEADER and proposal.term == raft.term
        )
        return lost
