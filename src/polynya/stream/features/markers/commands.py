"""Commands that end transactions in streams and consumer groups, and that note this in their indexes:
tags 114, 118 and 123."""

from __future__ import annotations

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import DECIDED_MAX, GROUP_ID_BYTES_MAX, MARKED_MAX
from polynya.stream.command import Command, command
from polynya.stream.command_validation import COUNTER, TIME, WIDE
from polynya.stream.features.markers.control_batch import (
    MARKER_BYTES,
    control_batch,
    decided_ms_of,
    stored,
)
from polynya.stream.parts import Batch

_EPOCH = (0, 2**15 - 1)
_NUMBER = (1, COUNTER[1])


def _markers(command: TxnMarkers) -> str:
    count = len(command.uids) + len(command.groups)
    if not 1 <= count <= MARKED_MAX:
        return f"the markers are of {count} streams and groups; expected 1 to {MARKED_MAX}"
    strange = [id_ for id_ in command.groups if not 0 < len(id_) <= GROUP_ID_BYTES_MAX]
    if strange:
        return f"the id of a consumer group has {len(strange[0])} characters; expected 1 to {GROUP_ID_BYTES_MAX}"
    if len(command.batch) != MARKER_BYTES:
        return f"the marker has {len(command.batch)} bytes; expected {MARKER_BYTES}"
    decided_ms = decided_ms_of(command.batch)
    if not TIME[0] <= decided_ms <= TIME[1]:
        return f"the marker has the time {decided_ms}; expected {TIME[0]} to {TIME[1]}"
    if command.batch != command.ending(decided_ms):
        return "the marker is not that of its producer, epoch and outcome"
    return ""


@command(
    since=TRANSACTION_LEVEL,
    bounds={"producer": WIDE, "epoch": _EPOCH, "number": _NUMBER, "now_ms": TIME},
    rows=("uids", (WIDE, None)),
    check=_markers,
    names=lambda command: [name for _, name in command.uids],
    needs_state=False,
)
class TxnMarkers(Command, tag=114, frozen=True):
    """End a producer's transaction in the streams `uids` (uid, name) and the consumer groups of one
    Raft group. Idempotent. Level 4.

    `batch` is the marker that a stream gets which has batches of the transaction. EVICTED: the detail
    lists the uids of evicted streams; it has ended in the others. Bring the states back and repeat."""

    producer: int
    epoch: int
    number: int
    commit: bool
    batch: bytes
    uids: list[tuple[int, str]]
    groups: list[str]
    now_ms: int

    def ending(self, decided_ms: int) -> bytes:
        """Return the marker of this end, decided at a time."""
        return control_batch(self.producer, self.epoch, commit=self.commit, decided_ms=decided_ms)

    def marker(self) -> Batch:
        """Return the batch that streams with data get."""
        return stored(self.batch)


def _settle(command: TxnSettle) -> str:
    if (command.uid > 0) == bool(command.group):
        return f"a TxnSettle is of the uid {command.uid} and of a group; expected one of them"
    if len(command.group) > GROUP_ID_BYTES_MAX:
        return f"the id of a consumer group has {len(command.group)} characters; expected 1 to {GROUP_ID_BYTES_MAX}"
    return ""


@command(
    since=TRANSACTION_LEVEL,
    bounds={
        "uid": WIDE,
        "producer": WIDE,
        "epoch": _EPOCH,
        "number": _NUMBER,
        "decided_ms": TIME,
        "now_ms": TIME,
    },
    check=_settle,
)
class TxnSettle(Command, tag=118, frozen=True):
    """End a transaction that is open in one stream (`uid`) or consumer group (`group`), as its
    coordinator answered. Idempotent. Level 4.

    `epoch` and `decided_ms` are those of the decision. Without one the epoch is that of the open
    transaction, so that its producer is not fenced."""

    uid: int  # 0: of a consumer group
    group: str  # "": of a stream
    producer: int
    epoch: int
    number: int
    commit: bool
    decided_ms: int
    now_ms: int

    def marker(self) -> Batch:
        """Return the batch that the stream gets."""
        return stored(
            control_batch(self.producer, self.epoch, commit=self.commit, decided_ms=self.decided_ms)
        )


def _ranges(command: DecideEntries) -> str:
    count = len(command.ranges)
    if not 1 <= count <= DECIDED_MAX:
        return f"the command has {count} ranges; expected 1 to {DECIDED_MAX}"
    return ""


@command(
    since=TRANSACTION_LEVEL,
    bounds={"now_ms": TIME},
    rows=("ranges", (WIDE, COUNTER, COUNTER)),
    check=_ranges,
)
class DecideEntries(Command, tag=123, frozen=True):
    """Note that the slices of some entries have no batch of an open or aborted transaction, though
    they were built while transactions were open: (uid, first record, record behind the last).
    Level 4."""

    ranges: list[tuple[int, int, int]]
    now_ms: int
