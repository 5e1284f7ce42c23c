"""The leader's view of one member: replication progress and data in flight, a snapshot too."""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from polynya.raft.messages import Snapshot


class Mode(IntEnum):
    PROBE = 0  # the point of divergence is unknown: one append at a time
    REPLICATE = 1  # pipelined: `next` runs ahead of `match`
    SNAPSHOT = 2  # the entries that it needs are compacted


class OutgoingSnapshot:
    """A snapshot on its way to a member, in chunks."""

    __slots__ = ("acked", "heard_ms", "next", "since_ms", "snapshot", "timeout_ms")

    def __init__(self, snapshot: Snapshot, now_ms: int) -> None:
        self.snapshot = snapshot
        self.acked = 0  # the bytes that the member has
        self.next = 0  # the offset of the next chunk
        self.since_ms = now_ms  # time of the last answer, or of the last chunks that were repeated
        self.heard_ms = now_ms  # time of the last answer …
        self.timeout_ms = 0  # … and the timeout of the next

    def answered(self, now_ms: int) -> None:
        """Record an answer to a chunk, duplicates included, and adapt the retry timeout to the
        interval between answers."""
        self.timeout_ms = 2 * (now_ms - self.heard_ms)
        self.since_ms = self.heard_ms = now_ms


class Progress:
    """The progress of one member. Invariants: match < next; `inflight` is ordered by last index,
    all in match + 1 … next - 1."""

    __slots__ = (
        "beat_context",
        "beat_ms",
        "beat_next",
        "commit_sent",
        "context",
        "heard_ms",
        "inflight",
        "inflight_bytes",
        "learned",
        "lost",
        "match",
        "mode",
        "next",
        "outgoing",
        "probe_context",
        "probed",
        "probing",
        "quiescent",
        "resent_ms",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.match = 0
        self.next = next_index
        self.mode = Mode.PROBE
        self.probing = False  # an append without an answer is in flight
        self.probed = (0, 0)  # its last index and bytes …
        self.probe_context = -1  # … and the heartbeat before it
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append
        self.inflight_bytes = 0
        self.commit_sent = 0  # the highest commit index sent to it
        self.context = 0  # the newest heartbeat that it answered
        self.heard_ms = now_ms
        self.quiescent = self.lost = False
        self.learned = False  # a new replica reported that it may vote
        # the regular heartbeat in flight, and the next index when it was sent
        self.beat_context = self.beat_next = self.beat_ms = 0
        self.outgoing: OutgoingSnapshot | None = None  # in mode SNAPSHOT
        self.resent_ms = 0  # when lost chunks were last sent again, of any snapshot

    def sent(self, last: int, size: int) -> None:
        self.inflight.append((last, size))
        self.inflight_bytes += size
        self.next = last + 1

    def has_room(self, messages_max: int, bytes_max: int) -> bool:
        return len(self.inflight) < messages_max and self.inflight_bytes < bytes_max

    def acknowledge(self, match: int) -> bool:
        """Record an acknowledgement. Return whether `match` advanced."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= match:
            self.inflight_bytes -= inflight.popleft()[1]
        if match <= self.match:
            return False
        self.match = match
        self.next = max(self.next, match + 1)
        return True

    def probe(self, next_index: int) -> None:
        """Probe which entries the member has, starting from `next_index`."""
        self._enter(Mode.PROBE)
        self.beat_next = 0  # heartbeats sent earlier do not cover appends from now on
        self.next = max(next_index, self.match + 1)

    def replicate(self) -> None:
        """Start pipelined replication. The entries of an unanswered probe count as in flight."""
        probed = self.probed if self.mode is Mode.PROBE and self.probing else (0, 0)
        self._enter(Mode.REPLICATE)
        self.next = self.match + 1
        if probed[0] > self.match:
            self.sent(*probed)

    def send_snapshot(self, snapshot: Snapshot, now_ms: int) -> None:
        self._enter(Mode.SNAPSHOT)
        self.outgoing = OutgoingSnapshot(snapshot, now_ms)

    def _enter(self, mode: Mode) -> None:
        self.mode = mode
        self.probing = False
        self.outgoing = None
        self.inflight.clear()
        self.inflight_bytes = 0
