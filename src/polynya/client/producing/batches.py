"""The batches of a producer that wait for a response: how they fill, and in which order they are
sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from polynya.client.messages import Backoff, Retry

SEPARATOR_BYTES = 2  # a comma, or the brackets
WAITING_PER_IN_FLIGHT = 4  # unacknowledged batches per batch in flight; beyond that, append waits
LINGER_SECONDS_MAX = 86_400  # longer waits overflow the timers of some systems
STEADY_BATCHES = 64  # batches applied in order before the window widens by one


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that gather records into batches.

    A batch is sent when it reaches `batch_bytes` or `batch_records`, or `linger_seconds` after its
    first record, once fewer than `in_flight` batches are in flight. When records without a receipt
    exceed `buffer_bytes`, append waits.

    Raises ValueError for a number that is not positive, and for a `linger_seconds` that is negative
    or too large."""

    batch_bytes: int = 1 << 20
    batch_records: int = 10_000
    linger_seconds: float = 0.005
    in_flight: int = 4
    buffer_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "batch_records", "in_flight", "buffer_bytes"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.linger_seconds <= LINGER_SECONDS_MAX:
            raise ValueError(
                f"linger_seconds must be between 0 and {LINGER_SECONDS_MAX}, not "
                f"{self.linger_seconds}"
            )


class Batch:
    """The records of one sequence number. The client sets `receipt` for its waiters; the core only
    passes it on."""

    __slots__ = (
        "attempts",
        "backoff",
        "closes",
        "floor",
        "held",
        "not_before",
        "number",
        "perhaps",
        "receipt",
        "records",
        "sending",
        "size",
    )

    def __init__(self, number: int, retry: Retry) -> None:
        self.number = number
        self.receipt: object = None
        self.records: list[bytes] = []
        self.size = 0
        self.attempts = 0
        self.closes = False  # closes the stream after its records
        self.floor = 0  # all batches below this number were applied when it was last sent
        self.sending = False
        self.held = False  # held back until the earlier batches are applied
        self.perhaps = False  # an attempt may have been applied
        self.not_before = 0.0
        self.backoff = Backoff(retry)


class BatchQueue:
    """The unacknowledged batches by number; the last one may still be filling."""

    def __init__(self, batching: Batching, retry: Retry) -> None:
        self.buffered_bytes = 0
        self.is_full = True  # the last batch accepts no more records
        self._batching = batching
        self._retry = retry
        self._waiting_max = WAITING_PER_IN_FLIGHT * batching.in_flight
        self._batches: deque[Batch] = deque()
        self._opened_at = 0.0  # when the filling batch was started
        self._flushing = False
        self._next = 0
        self._window = batching.in_flight
        self._steady = 0  # batches applied since the last overtaking

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def is_sending(self) -> bool:
        """True if a batch is in flight."""
        return any(batch.sending for batch in self._batches)

    # --- filling ----------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Return True if a record of `size` bytes, its separator included, can be added now. A
        single record always fits."""
        if not self._batches:
            return True
        if len(self._batches) >= self._waiting_max and self._begins(size):
            return False
        return self.buffered_bytes + size <= self._batching.buffer_bytes

    def _begins(self, size: int) -> bool:
        """Return True if the record begins a batch."""
        return (
            self.is_full
            or self._batches[-1].sending
            or self._batches[-1].size + size > self._batching.batch_bytes
        )

    def add(self, record: bytes, now: float) -> Batch:
        """Add a record to a batch, and return the batch."""
        size, batching = len(record) + SEPARATOR_BYTES, self._batching
        if self._begins(size):
            self._append()
            self._opened_at = now
            self.is_full = False
        batch = self._batches[-1]
        batch.records.append(record)
        batch.size += size
        self.buffered_bytes += size
        self.is_full = (
            batch.size >= batching.batch_bytes or len(batch.records) >= batching.batch_records
        )
        return batch

    def add_closing(self, records: list[bytes], size: int) -> Batch:
        """Add the batch that closes the stream after these records, and return it."""
        batch = self._append()
        batch.records, batch.size, batch.closes = records, size, True
        self.buffered_bytes += size
        self.is_full = self._flushing = True
        return batch

    def _append(self) -> Batch:
        batch = Batch(self._next, self._retry)
        self._next += 1
        self._batches.append(batch)
        return batch

    def flush(self) -> int:
        """Send the offered records without lingering. Return the number to pass to `is_settled`."""
        if self._batches:
            self._flushing = True
        return self._next

    # --- sending ----------------------------------------------------------------------------------

    def waiting(self) -> Batch | None:
        """Return the next batch to send. A batch that pauses after a failure blocks the later ones,
        which would be refused."""
        if sum(batch.sending for batch in self._batches) >= self._window:
            return None
        waiting = next(
            (batch for batch in self._batches if not batch.sending and not batch.held), None
        )
        if waiting is not None and waiting.closes and waiting is not self._batches[0]:
            return None  # a closed stream refuses retries of the earlier batches
        return waiting

    def ready_at(self, batch: Batch) -> float:
        """Return from when on the batch may be sent."""
        filling = (
            batch is self._batches[-1]
            and not self.is_full
            and not self._flushing
            and not batch.attempts
        )
        return self._opened_at + self._batching.linger_seconds if filling else batch.not_before

    def begin(self, batch: Batch) -> None:
        """Note that the batch is sent. It accepts no more records."""
        batch.sending = True
        batch.floor = self._batches[0].number
        batch.attempts += 1
        if batch is self._batches[-1]:
            self.is_full = True

    def numbered(self, number: int) -> Batch | None:
        """Return a batch, or None if it is completed."""
        return next((batch for batch in self._batches if batch.number == number), None)

    def hold(self, batch: Batch) -> None:
        """Hold back a batch that overtook earlier ones, and narrow the window."""
        batch.held = batch is not self._batches[0]
        self._window, self._steady = max(1, self._window // 2), 0

    def release(self) -> None:
        """Release a held batch once it is the first."""
        if self._batches and self._batches[0].held:
            self._batches[0].held = False

    # --- completing -------------------------------------------------------------------------------

    def is_settled(self, end: int) -> bool:
        """Return True if all batches below a number are completed."""
        return not self._batches or self._batches[0].number >= end

    def settle(self, number: int) -> Sequence[Batch]:
        """Remove the batches up to a number, and return them."""
        settled = []
        while self._batches and self._batches[0].number <= number:
            batch = self._batches.popleft()
            self.buffered_bytes -= batch.size
            settled.append(batch)
        self._steady += len(settled)
        if self._steady >= STEADY_BATCHES:
            self._window, self._steady = min(self._window + 1, self._batching.in_flight), 0
        if not self._batches:
            self._flushing = False
        return settled

    def stop(self) -> bool:
        """Expect no more responses. Return True if an attempt may have been applied."""
        for batch in self._batches:
            if batch.sending:
                batch.sending, batch.perhaps = False, True
        return any(batch.perhaps for batch in self._batches)

    def clear(self) -> Sequence[Batch]:
        """Remove all batches, and return them."""
        batches = tuple(self._batches)
        self._batches.clear()
        self.buffered_bytes = 0
        return batches
