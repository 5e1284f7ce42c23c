"""What a leader knows of one member, and how much is on its way there."""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from polynya.raft.messages import Snapshot


class Mode(IntEnum):
    PROBE = 0  # where the logs part is not known: one append at a time
    REPLICATE = 1  # pipelined: `next` runs ahead of `match`
    SNAPSHOT = 2  # what it needs is compacted


class Progress:
    """Invariants: match < next; `inflight` is in order of its last indexes, all in match + 1 … next - 1."""

    __slots__ = (
        "asleep",
        "beat_context",
        "beat_ms",
        "beat_next",
        "chunk_acked",
        "chunk_back_ms",
        "chunk_heard_ms",
        "chunk_ms",
        "chunk_next",
        "chunk_patience_ms",
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
        "snapshot",
        "told",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.match = 0
        self.next = next_index
        self.mode = Mode.PROBE
        self.probing = False  # an append that nobody has answered yet
        self.probed = (0, 0)  # its last index and bytes …
        self.probe_context = -1  # … and the heartbeat before it
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append
        self.inflight_bytes = 0
        self.told = 0  # the commit that it knows of, as far as we know
        self.context = 0  # newest heartbeat that it answered
        self.heard_ms = now_ms
        self.asleep = self.lost = False
        self.learned = False  # it has said that it may vote, where it was made anew
        self.beat_context = self.beat_next = self.beat_ms = 0  # the regular heartbeat that is waited for, and what had been sent before it
        self.snapshot: Snapshot | None = None
        self.chunk_acked = self.chunk_next = self.chunk_ms = self.chunk_back_ms = 0
        self.chunk_heard_ms = 0  # the last answer to one …
        self.chunk_patience_ms = 0  # … and how long the next may take

    def sent(self, last: int, size: int) -> None:
        self.inflight.append((last, size))
        self.inflight_bytes += size
        self.next = last + 1

    def has_room(self, messages_max: int, bytes_max: int) -> bool:
        return len(self.inflight) < messages_max and self.inflight_bytes < bytes_max

    def acknowledge(self, match: int) -> bool:
        """Whether this is news."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= match:
            self.inflight_bytes -= inflight.popleft()[1]
        if match <= self.match:
            return False
        self.match = match
        self.next = max(self.next, match + 1)
        return True

    def probe(self, next_index: int) -> None:
        """Find out, from `next_index`, what it has."""
        self._enter(Mode.PROBE)
        self.beat_next = 0  # heartbeats that left before this say nothing of what is sent from now on
        self.next = max(next_index, self.match + 1)

    def replicate(self) -> None:
        """It is known from where on to send. What a probe took along is on its way."""
        probed = self.probed if self.mode is Mode.PROBE and self.probing else (0, 0)
        self._enter(Mode.REPLICATE)
        self.next = self.match + 1
        if probed[0] > self.match:
            self.sent(*probed)

    def send_snapshot(self, snapshot: Snapshot, now_ms: int) -> None:
        self._enter(Mode.SNAPSHOT)
        self.snapshot = snapshot
        self.chunk_acked = self.chunk_next = self.chunk_patience_ms = 0
        self.chunk_ms = self.chunk_heard_ms = now_ms

    def hear_of_chunk(self, now_ms: int) -> None:
        """Of any, also of one that came twice: what was sent is still arriving, one after so long."""
        self.chunk_patience_ms = 2 * (now_ms - self.chunk_heard_ms)
        self.chunk_ms = self.chunk_heard_ms = now_ms

    def _enter(self, mode: Mode) -> None:
        self.mode = mode
        self.probing = False
        self.snapshot = None
        self.inflight.clear()
        self.inflight_bytes = 0
