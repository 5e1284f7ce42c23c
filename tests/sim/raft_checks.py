"""Invariants of a group: the five properties of the Raft paper (figure 3), durability before
messages, linearizable reads, leases."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from polynya.raft import Configuration, Effects, Entry, EntryKind, Message, Role, Settings, Snapshot
from polynya.raft.configuration import decode_configuration
from polynya.raft.messages import AppendAnswer, HeartbeatAnswer, Vote, VoteAnswer
from polynya.raft.reading import has_lease

if TYPE_CHECKING:
    from worlds.raft import Member, World


class Token(msgspec.Struct):
    """A read and the minimal index that it must see."""

    committed: int


class Checks:
    """Global knowledge that no member has. Each check raises AssertionError when it fails."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.leaders: dict[int, int] = {}  # term -> node
        self.votes: dict[tuple[int, int], int] = {}  # (voter, term) -> candidate
        self.entries: dict[
            tuple[int, int], tuple[int, int, bytes]
        ] = {}  # (index, term) -> term before, kind, payload
        self.committed: dict[int, tuple[int, str]] = {}  # index -> term, state after it
        self.committed_last = 0
        self.leader_ends: dict[
            tuple[int, int], int
        ] = {}  # (node, term) -> end of the log while it leads
        self.reads = 0

    def token(self) -> Token:
        return Token(self.committed_last)

    # --- when something happens -------------------------------------------------------------------

    def written(self, member: Member, effects: Effects) -> None:
        """Log matching: an index and a term name one entry, and one entry before it."""
        log = member.live.log
        for entry in effects.entries:
            before = log.term(entry.index - 1)
            assert before is not None
            known = self.entries.setdefault(
                (entry.index, entry.term), (before, entry.kind, entry.payload)
            )
            assert known == (before, entry.kind, entry.payload), (
                f"log matching: entry {entry.index} of term {entry.term} differs"
            )

    def sent(self, member: Member, message: Message) -> None:
        """Check that a message reports durable state only."""
        hard, node = member.disk.hard_state, member.node
        pre = isinstance(message, Vote | VoteAnswer) and message.pre
        assert pre or message.term <= hard.term, (
            f"member {node} speaks of term {message.term}, its disk of {hard.term}"
        )
        if isinstance(message, VoteAnswer) and message.granted and not pre:
            self._voted(member, message.term, message.to)
        if isinstance(message, Vote) and not pre:
            self._voted(member, message.term, node)
        if isinstance(message, AppendAnswer | HeartbeatAnswer):
            self._has_durably(member, message.match)

    def changed(self, member: Member) -> None:
        raft = member.live
        member.world.note(
            member.node,
            f"is {raft.role.name.lower()} in term {raft.term}, leader {raft.leader or 'unknown'}",
        )
        if raft.role is not Role.LEADER:
            return
        assert self.leaders.setdefault(raft.term, raft.node) == raft.node, (
            f"election safety: two leaders in term {raft.term}"
        )
        for index in range(raft.log.first, self.committed_last + 1):  # leader completeness
            term = self.committed[index][0]
            assert term > raft.term or raft.log.term(index) == term, (
                f"leader {raft.node} of term {raft.term} lacks the committed entry {index}"
            )

    def applied(self, member: Member, entry: Entry, state: str) -> str:
        """State machine safety. The first to apply an entry is its commit."""
        state = hashlib.blake2b(
            f"{state}/{entry.term}/{entry.kind}/".encode() + entry.payload, digest_size=8
        ).hexdigest()
        if entry.index > self.committed_last:
            assert entry.index == self.committed_last + 1
            self._majority_has(member, entry.index, entry.term)
            self.committed[entry.index] = (entry.term, state)
            self.committed_last = entry.index
        if entry.kind == EntryKind.COMMAND:
            member.world.note(member.node, f"applies {entry.payload.decode()[:20]}")
        assert self.committed[entry.index] == (entry.term, state), (
            f"state machine safety: member {member.node} differs at {entry.index}"
        )
        if entry.kind == EntryKind.CONFIGURATION:
            member.world.note(
                member.node, f"commits {show_configuration(decode_configuration(entry.payload))}"
            )
        return state

    def read(self, member: Member, token: Token) -> None:
        self.reads += 1
        member.world.note(member.node, f"is read at {member.applied}")
        assert member.applied >= token.committed, (
            f"member {member.node} reads at {member.applied} what was at {token.committed} before"
        )

    def retracted(self, node: int, term: int, first: int) -> None:
        """Record an entry that a group of one retracts: it existed nowhere else and may differ
        next time."""
        self.leader_ends[node, term] = first - 1
        self.entries = {
            key: entry for key, entry in self.entries.items() if key[0] < first or key[1] != term
        }

    # --- snapshots --------------------------------------------------------------------------------

    def body(self, member: Member) -> bytes:
        return msgspec.msgpack.encode((member.applied, member.state, "." * 300))

    def open(self, snapshot: Snapshot, body: bytes) -> tuple[int, str]:
        index, state, _ = msgspec.msgpack.decode(body)
        assert index == snapshot.index and self.committed[index] == (snapshot.term, state), (
            "a snapshot is of what was committed"
        )
        return index, state

    # --- after each step --------------------------------------------------------------------------

    def always(self, world: World) -> None:
        rafts = [
            (member, member.raft) for member in world.members.values() if member.raft is not None
        ]
        for member, raft in rafts:
            assert raft.applied <= raft.handed <= raft.commit <= raft.log.last
            if raft.role is Role.LEADER:
                last = self.leader_ends.setdefault((raft.node, raft.term), 0)
                assert raft.log.last >= last, "a leader only appends"
                self.leader_ends[raft.node, raft.term] = raft.log.last
                self._bounds(raft)
                raft.now_ms = max(raft.now_ms, member.now_ms)
                if has_lease(raft):
                    newer = [
                        other.node
                        for _, other in rafts
                        if other.role is Role.LEADER and other.term > raft.term
                    ]
                    assert not newer, f"member {newer} leads while {raft.node} has a lease"

    def _bounds(self, raft: object) -> None:
        for peer in raft.peers.values():  # type: ignore[attr-defined]
            assert len(peer.inflight) <= self.settings.inflight_messages_max
            assert peer.match < peer.next
            if (outgoing := peer.outgoing) is not None:
                most = self.settings.chunk_window_bytes + self.settings.chunk_bytes
                assert outgoing.next - outgoing.acked <= most

    def _voted(self, member: Member, term: int, candidate: int) -> None:
        hard = member.disk.hard_state
        assert hard.term > term or (hard.term, hard.vote) == (term, candidate), (
            f"member {member.node} has not its vote on disk"
        )
        assert self.votes.setdefault((member.node, term), candidate) == candidate, (
            f"member {member.node} votes twice in term {term}"
        )

    def _has_durably(self, member: Member, index: int) -> None:
        disk = member.disk
        if index > max(disk.snapshots, default=0):
            assert disk.terms.get(index) == member.live.log.term(index), (
                f"member {member.node} acknowledges {index} before it is on disk"
            )

    def _majority_has(self, member: Member, index: int, term: int) -> None:
        """Assert that what is committed is on the disks of a majority of the configuration that was
        in effect there."""
        members = member.world.members
        configuration = member.live.configuration
        has = {
            node: node in members
            and (
                members[node].disk.terms.get(index) == term
                or index <= max(members[node].disk.snapshots, default=0)
            )
            for node in {*configuration.voters, *configuration.outgoing}
        }
        older = [known for begin, known in member.live.configurations if begin < index] or [
            configuration
        ]
        assert configuration.won(has) or older[-1].won(has), (
            f"entry {index} is committed, and not on the disks of a majority: {has}"
        )


def show_configuration(configuration: Configuration) -> str:
    parts = zip(
        ("voters", "outgoing", "learners", "readers"),
        msgspec.structs.astuple(configuration),
        strict=True,
    )
    return " ".join(f"{name}={','.join(map(str, members))}" for name, members in parts if members)
