"""Chunked snapshot transfer to members that lag too far behind. Acknowledgements pace it, and it
resumes after an interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.raft import following, membership, reading
from polynya.raft.effects import ChunkArrived, ChunkWanted, Role
from polynya.raft.log import Log
from polynya.raft.messages import Snapshot, SnapshotAnswer, SnapshotChunk
from polynya.raft.progress import OutgoingSnapshot

if TYPE_CHECKING:
    from polynya.raft.state import RaftState

CHUNK_TIMEOUT_MAX = 16  # election times


class Snapshots:
    """The inputs of a member that concern snapshots."""

    __slots__ = ("_raft",)

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft

    def describe(self, index: int, size: int, identity: int) -> Snapshot:
        """Return the descriptor of a snapshot of the state at an applied index."""
        raft, term = self._raft, self._raft.log.term(index)
        assert term is not None and index <= raft.applied, "the state of an index that is applied"
        return Snapshot(index, term, membership.configuration_at(raft, index), size, identity)

    def taken(self, snapshot: Snapshot, first: int, now_ms: int) -> None:
        """Record a durable snapshot of applied state (see `describe`). Entries before `first` are
        dropped; `first` is at most the snapshot's index + 1."""
        self._raft.at(now_ms)
        taken(self._raft, snapshot, first)

    def chunk_read(self, wanted: ChunkWanted, data: bytes, now_ms: int) -> None:
        """Complete a `ChunkWanted`."""
        self._raft.at(now_ms)
        chunk_read(self._raft, wanted, data)

    def chunk_missing(self, wanted: ChunkWanted, now_ms: int) -> None:
        """Handle an unreadable snapshot: the newest one is sent instead."""
        self._raft.at(now_ms)
        chunk_missing(self._raft, wanted)

    def forget_incoming(self) -> None:
        """Drop an incoming snapshot that could not be stored. Its next chunk is answered with 0,
        which restarts the transfer."""
        self._raft.transfers.incoming = None

    def installed(self, identity: int, now_ms: int) -> None:
        """Record that the snapshot of `Effects.install` is durable and is the applied state."""
        self._raft.at(now_ms)
        installed(self._raft, identity)

    def install_failed(self, identity: int, now_ms: int) -> None:
        """Record that the snapshot is unusable, for example damaged. The leader sends it again."""
        self._raft.at(now_ms)
        install_failed(self._raft, identity)


def taken(raft: RaftState, snapshot: Snapshot, first: int) -> None:
    if snapshot.index < raft.snapshot.index:
        return
    assert snapshot.index <= raft.applied and snapshot.size > 0, "a snapshot of what is applied"
    raft.snapshot = snapshot
    membership.forget(raft, snapshot.index)
    raft.log.compact(min(first, snapshot.index + 1, raft.durable + 1))


# --- the leader -----------------------------------------------------------------------------------


def know_members(raft: RaftState) -> None:
    """Fill in the snapshot's configuration if it was unknown when the snapshot was taken. Members
    reject one without voters."""
    if not raft.snapshot.configuration.voters:
        raft.snapshot = msgspec.structs.replace(
            raft.snapshot, configuration=membership.configuration_at(raft, raft.snapshot.index)
        )


def want(raft: RaftState, node: int, outgoing: OutgoingSnapshot) -> None:
    """Request the next chunks of the window. The first chunk is sent alone; its answer says where
    to resume."""
    settings, snapshot = raft.settings, outgoing.snapshot
    window = settings.chunk_window_bytes if outgoing.acked else 1
    while outgoing.next < snapshot.size and outgoing.next - outgoing.acked < window:
        length = min(settings.chunk_bytes, snapshot.size - outgoing.next)
        raft.transfers.chunks_wanted.append(ChunkWanted(node, snapshot, outgoing.next, length))
        outgoing.next += length


def chunk_read(raft: RaftState, wanted: ChunkWanted, data: bytes) -> None:
    if _is_sending(raft, wanted):
        assert len(data) == wanted.length, "a chunk is whole"
        raft.send(
            SnapshotChunk(
                wanted.to, raft.node, raft.group, raft.term, wanted.snapshot, wanted.offset, data
            )
        )


def chunk_missing(raft: RaftState, wanted: ChunkWanted) -> None:
    if _is_sending(raft, wanted) and raft.snapshot != wanted.snapshot:
        raft.peers[wanted.to].send_snapshot(raft.snapshot, raft.now_ms)


def on_answer(raft: RaftState, message: SnapshotAnswer) -> None:
    peer = raft.peers.get(message.sender)
    if peer is None or raft.role is not Role.LEADER:
        return
    outgoing = peer.outgoing
    is_current = outgoing is not None and outgoing.snapshot.identity == message.identity
    if outgoing is not None and is_current and message.received > outgoing.snapshot.size:
        raise InvalidMessage(
            f"node {message.sender} acknowledged more bytes of a snapshot of group {raft.group} "
            "than it has"
        )
    peer.heard_ms = raft.now_ms
    if outgoing is None or not is_current:
        return
    outgoing.answered(raft.now_ms)
    if message.received == outgoing.acked:
        return
    lost = message.received < outgoing.acked
    # a chunk was lost or not stored, or answers were reordered; then resending repeats chunks
    if lost:
        if raft.now_ms - peer.resent_ms < raft.settings.heartbeat_ms:
            return
        peer.resent_ms = raft.now_ms
    outgoing.acked = message.received
    outgoing.next = message.received if lost else max(outgoing.next, message.received)


def beat(raft: RaftState) -> None:
    """Resend chunks after an election time without an answer. The timeout doubles, because on a
    slow link the retries queue behind the first attempts. The first chunk may wait for a transfer
    slot, and is repeated. A member that has all chunks but does not confirm is sent the snapshot
    from the start."""
    election_ms = raft.settings.election_ms
    for peer in raft.peers.values():
        outgoing = peer.outgoing
        if outgoing is None:
            continue
        timeout_ms = (
            min(max(outgoing.timeout_ms, election_ms), CHUNK_TIMEOUT_MAX * election_ms)
            if outgoing.acked
            else election_ms
        )
        if raft.now_ms - outgoing.since_ms >= timeout_ms:
            if outgoing.acked == outgoing.snapshot.size:
                outgoing.acked = 0
            outgoing.next, outgoing.since_ms = outgoing.acked, raft.now_ms
            outgoing.timeout_ms = 2 * timeout_ms


def _is_sending(raft: RaftState, wanted: ChunkWanted) -> bool:
    peer = raft.peers.get(wanted.to)
    return (
        raft.role is Role.LEADER
        and peer is not None
        and peer.outgoing is not None
        and peer.outgoing.snapshot == wanted.snapshot
    )


# --- other members --------------------------------------------------------------------------------


def on_chunk(raft: RaftState, message: SnapshotChunk) -> None:
    following.heard(raft, message.sender)
    raft.quiescent = False
    snapshot = message.snapshot
    if raft.transfers.installing is not None:
        if raft.transfers.installing == snapshot:
            _answer(raft, message, snapshot.size)
    elif snapshot.index <= raft.commit or raft.log.term(snapshot.index) == snapshot.term:
        raft.verified = max(raft.verified, snapshot.index)
        raft.ack_due = True
        following.learn_commit(raft, snapshot.index)
    else:
        _receive(raft, message)


def installed(raft: RaftState, identity: int) -> None:
    snapshot = _installing(raft, identity)
    raft.transfers.installing = None
    raft.log = Log(snapshot.index, snapshot.term)
    raft.configurations = [(snapshot.index, snapshot.configuration)]
    raft.applied = raft.handed = raft.commit = raft.verified = snapshot.index
    raft.snapshot = raft.reset = snapshot
    raft.durable = 0  # until the reset is durable
    for write in raft.writes:
        write.last = 0
    raft.unstaged = snapshot.index + 1
    raft.ack_due = True
    reading.release_applied(raft)


def install_failed(raft: RaftState, identity: int) -> None:
    snapshot = _installing(raft, identity)
    raft.transfers.installing = None
    if raft.leader:
        raft.send(
            SnapshotAnswer(raft.leader, raft.node, raft.group, raft.term, snapshot.identity, 0)
        )


def _installing(raft: RaftState, identity: int) -> Snapshot:
    snapshot = raft.transfers.installing
    if snapshot is None or snapshot.identity != identity:
        raise ValueError(f"group {raft.group} is not installing the snapshot {identity}")
    return snapshot


def _receive(raft: RaftState, message: SnapshotChunk) -> None:
    snapshot = message.snapshot
    if raft.transfers.incoming is None or raft.transfers.incoming[0] != snapshot:
        raft.transfers.incoming = (snapshot, 0)
    received = raft.transfers.incoming[1]
    if message.offset == received and message.data:
        raft.transfers.chunks_arrived.append(ChunkArrived(snapshot, message.offset, message.data))
        received += len(message.data)
        raft.transfers.incoming = (snapshot, received)
    _answer(raft, message, received)
    if received >= snapshot.size:
        raft.transfers.installing = raft.transfers.install = snapshot
        raft.transfers.incoming = None


def _answer(raft: RaftState, message: SnapshotChunk, received: int) -> None:
    raft.send(
        SnapshotAnswer(
            message.sender, raft.node, raft.group, raft.term, message.snapshot.identity, received
        )
    )
