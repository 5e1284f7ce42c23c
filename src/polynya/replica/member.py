"""One replica of a group that has several: agreement joined to the machine, and where its log lies in the journal."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import Any

import msgspec

from polynya.raft import Entry, Raft, Role
from polynya.replica.log import encode_bundle
from polynya.replica.shard import Group
from polynya.stream.commands import BUNDLE_BYTES, BUNDLE_COMMANDS_MAX, Append, Command


class Proposal(Entry, gc=False):
    """An entry that was proposed here. `token` is the proposer's, None once it is answered."""

    command: Command | None = None
    token: Any = None


class ReceivedEntry(Entry, gc=False):
    """One that a leader sent, with what it says until it is applied."""

    command: Command | None = None


class Bundled(Entry, gc=False):
    """Several that were proposed here, as one entry."""

    parts: list[Proposal] = msgspec.field(default_factory=list)


Proposed = Proposal | Bundled


def parts_of(entry: Entry) -> list[Proposal]:
    """What was proposed here with it, and may not be answered yet."""
    return entry.parts if type(entry) is Bundled else [entry] if type(entry) is Proposal else []


def bundled(queue: list[Entry]) -> list[Entry]:
    """The same proposals with as few entries as may be: appends that follow each other are one (`Bundle`)."""
    found: list[Entry] = []
    run: list[Proposal] = []
    size = 0
    for entry in queue:
        length = len(entry.payload)
        fits = type(entry) is Proposal and type(entry.command) is Append and length <= BUNDLE_BYTES
        if run and not (fits and size + length <= BUNDLE_BYTES and len(run) < BUNDLE_COMMANDS_MAX):
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
    """Invariants: what is applied is durable here, so that a hot batch's place can always be read; `places` has one place for each entry
    of the log that was given to the journal, ascending; `proposals` are in the order of their indexes."""

    __slots__ = ("committed", "first", "group", "leads", "places", "proposals", "queue", "raft", "reading")

    def __init__(self, group: Group, raft: Raft, entries: list[Entry]) -> None:
        """`entries`: those of the log that the journal had at the start, with their places."""
        self.group = group
        self.raft = raft
        self.first = entries[0].index if entries else raft.log.last + 1  # the index of places[0]
        self.places = array("Q", [entry.place for entry in entries])
        self.committed: deque[Entry] = deque()  # not applied yet: not durable here
        self.queue: list[Entry] = []  # proposals of this turn, one by one
        self.proposals: deque[Proposed] = deque()  # in the log, not answered
        self.reading: list[Any] | None = None  # who waits for the read that leaves with this turn
        self.leads = False  # elected, and all of the terms before is applied

    def staged(self, entries: list[Entry]) -> None:
        """They have places in the journal now; entries of before with the same or larger indexes are no more."""
        begin = entries[0].index
        if begin < self.first:
            self.first = begin
            del self.places[:]
        else:
            del self.places[begin - self.first :]
        self.places.extend([entry.place for entry in entries])

    def installed(self, index: int) -> None:
        """The log begins anew behind `index`, with another machine in the group."""
        self.first = index + 1
        del self.places[:]
        self.committed.clear()

    def let_go(self, first: int) -> None:
        """The log does not need the entries before `first`."""
        if first > self.first:
            del self.places[: first - self.first]
            self.first = first

    def first_from(self, place: int) -> int:
        """The first entry of the log at this place or behind it."""
        return self.first + bisect_left(self.places, place)

    def place_of(self, index: int) -> int | None:
        at = index - self.first
        return self.places[at] if 0 <= at < len(self.places) else None

    def can_lead(self) -> bool:
        """Whether proposals may be stamped and judged here: everything of the terms before is applied."""
        raft = self.raft
        return raft.role is Role.LEADER and self.group.applied_index >= raft.own_term_index

    def emptied(self) -> tuple[list[Entry], list[Proposed]]:
        """What was queued, and what is in the log and not answered: nothing of it is the member's any more."""
        queued, proposals = self.queue, list(self.proposals)
        self.queue = []
        self.proposals.clear()
        return queued, proposals

    def cut(self, index: int) -> list[Proposed]:
        """The proposals from this index on, which are in the log no more."""
        gone = [proposal for proposal in self.proposals if proposal.index >= index]
        self.proposals = deque(proposal for proposal in self.proposals if proposal.index < index)
        return gone

    def lost(self) -> list[Proposed]:
        """The proposals whose outcome this member does not learn in time, or never: those of a term in which it led and leads no more."""
        raft = self.raft
        if raft.role is Role.LEADER and all(proposal.term == raft.term for proposal in self.proposals):
            return []
        lost = [proposal for proposal in self.proposals if raft.role is not Role.LEADER or proposal.term != raft.term]
        self.proposals = deque(proposal for proposal in self.proposals if raft.role is Role.LEADER and proposal.term == raft.term)
        return lost
