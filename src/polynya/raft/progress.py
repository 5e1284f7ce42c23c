"""The leader's view of one member: replication progress and data in flight."""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from polynya.raft.messages import Snapshot


class Mode(IntEnum):
    PROBE = 0  # the point of divergence is unknown: one append at a time
    REPLICATE = 1  # pipelined: `next` runs ahead of `match`
    SNAPSHOT = 2  # the entries that it needs are compacted


class Progress:
    """The progress of one member. Invariants: match < next; `inflight` is ordered by last index,
    all in match + 1 … next - 1."""

    __slots__ = (
        "beat_context",
        "beat_ms",
        "beat_next",
        "chunk_acked",
        "chunk_back_ms",
        "chunk_heard_ms",
        "chunk_ms",
        "chunk_next",
        "chunk_timeout_ms",
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
        "probe_context",
        "probed",
        "probing",
        "quiescent",
        "snapshot",
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
        self.snapshot: Snapshot | None = None
        self.chunk_acked = self.chunk_next = self.chunk_ms = self.chunk_back_ms = 0
        self.chunk_heard_ms = 0  # time of the last chunk answer …
        self.chunk_timeout_ms = 0  # … and the timeout of the next

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
        self.snapshot = snapshot
        self.chunk_acked = self.chunk_next = self.chunk_timeout_ms = 0
        self.chunk_ms = self.chunk_heard_ms = now_ms

    def hear_of_chunk(self, now_ms: int) -> None:
        """Record an answer to a chunk, duplicates included, and adapt the retry timeout to the
        interval between answers."""
        self.chunk_timeout_ms = 2 * (now_ms - self.chunk_heard_ms)
        self.chunk_ms = self.chunk_heard_ms = now_ms

    def _enter(self, mode: Mode) -> None:
        self.mode = mode
        self.probing = False
        self.snapshot = None
        self.inflight.clear()
        self.inflight_bytes = 0
