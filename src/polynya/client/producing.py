"""The state machine of an idempotent producer: it turns records into batches, batches into
requests, and responses into receipts. It uses no clock, socket or thread.

Batches are numbered from 0; the number is the batch's `Producer-Seq`. Up to `in_flight` batches are
in flight at a time. An unanswered batch is retried under its number, so the server stores it once.
The server accepts numbers only in order, so it stores nothing after a gap.

A batch that overtakes an earlier one on another connection is refused with PRODUCER_GAP. It waits
until the earlier batch is applied. Each overtaking wastes a request, so it narrows the window of
batches in flight; `STEADY_BATCHES` in order widen it again.

A producer with a given id first probes the server for its epoch and sequence; the server always
refuses the probe. The producer then takes the next epoch. That fences a live run of the same id:
its next batch is refused with PRODUCER_STALE.

A producer can close its stream, with or without last records. The closing batch is sent once all
earlier batches are applied, because a closed stream refuses their retries. The closing batch has a
number too, so it is idempotent.

The first permanent refusal ends the producer: no later batch can be stored after the missing
number.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque

import msgspec

from polynya.base.limits import APPEND_BYTES_MAX, PRODUCER_NUMBER_MAX
from polynya.client.calls import Verdict, answer_of, failure, judge, retry_after, stream_target
from polynya.client.errors import (
    ClientError,
    Outcome,
    OutcomeUnknown,
    ProducerFailed,
    ProducerFenced,
    ProducerGap,
    Refused,
    StreamClosed,
    refused,
)
from polynya.client.messages import Backoff, Broken, EffectResult, HttpRequest, HttpResponse, Retry
from polynya.client.values import Appended, Json, encode, is_json, to_bytes
from polynya.client.verbs import appended

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


class Phase(enum.Enum):
    OPENING = "the epoch is being claimed"
    RUNNING = "batches are sent"
    FAILED = "nothing more is sent"


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


class Settled(msgspec.Struct, frozen=True):
    """A completed batch: its receipt, and the result or error for it."""

    receipt: object
    result: Appended | ProducerFailed


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a producer on a stream. `epoch` None: the one after the server's. `fresh`:
    the id is random and new, so no server knows it."""

    stream: str
    content_type: str
    producer_id: str
    epoch: int | None = 0
    fresh: bool = True


class ProducerCore:
    """The state machine. Call `offer` for each record, `due` for the next request, and `on_result`
    with its result.

    `wake_at` says when to call `due` again. `settled` collects completed batches until the client
    takes them."""

    def __init__(self, names: Names, batching: Batching, retry: Retry) -> None:
        self.names = names
        self._batching = batching
        self._retry = retry
        self._json = is_json(names.content_type)
        # unacknowledged, by number; the last one may still be filling
        self._batches: deque[Batch] = deque()
        self._opened_at = 0.0  # when the filling batch was started
        self._flushing = False
        self._next = 0
        self._window = batching.in_flight
        self._steady = 0  # batches applied since the last overtaking
        self._epoch = names.epoch or 0
        self._probing = False
        self._probe_trouble = Backoff(retry)
        self._probe_not_before = 0.0
        self._cause: ClientError | None = None
        self._full = True  # the last batch accepts no more records
        self._closed = False
        self._closing: Batch | None = None  # the batch that closes the stream
        self.phase = Phase.RUNNING if names.fresh else Phase.OPENING
        self.settled: list[Settled] = []
        self.failure: ProducerFailed | None = None
        self.buffered_bytes = 0
        self.applied = 0  # records
        self.refused = 0
        self.unknown = 0
        self.offset = ""  # after the last applied batch
        self.repeats = 0  # retried requests

    # --- records in -------------------------------------------------------------------------------

    @property
    def what(self) -> str:
        return f"producer '{self.names.producer_id}' of '{self.names.stream}'"

    @property
    def is_idle(self) -> bool:
        """True if no batch waits for a response."""
        return not self._batches

    @property
    def is_full(self) -> bool:
        """True if the last batch accepts no more records."""
        return self._full

    @property
    def is_over(self) -> bool:
        """True if no further request will be sent."""
        return self.phase is Phase.FAILED or (self._closed and self.is_idle)

    @property
    def epoch(self) -> int:
        return self._epoch

    def encode(self, record: Json) -> bytes:
        """Encode a record. Raises TypeError, ValueError."""
        return encode(record) if self._json else to_bytes(record)

    def has_room(self, size: int) -> bool:
        """Return True if a record of `size` bytes can be offered now.

        A single record always fits. A record that `offer` would refuse need not wait."""
        size += SEPARATOR_BYTES
        if self._closed or self._closing is not None or not self._batches:
            return True
        begins = (
            self._full
            or self._batches[-1].sending
            or self._batches[-1].size + size > self._batching.batch_bytes
        )
        if begins and len(self._batches) >= WAITING_PER_IN_FLIGHT * self._batching.in_flight:
            return False
        return self.buffered_bytes + size <= self._batching.buffer_bytes

    def offer(self, record: bytes, now: float) -> Batch:
        """Add a record to a batch and return the batch; a new batch has no receipt yet. Raises
        ValueError, `ProducerFailed`."""
        self._check_open()
        size = len(record) + SEPARATOR_BYTES
        if size > APPEND_BYTES_MAX:
            raise ValueError(f"the record has {len(record)} bytes; the limit is {APPEND_BYTES_MAX}")
        if not record:
            raise ValueError("an empty record cannot be appended")
        batching = self._batching
        if (
            self._full
            or self._batches[-1].sending
            or self._batches[-1].size + size > batching.batch_bytes
        ):
            self._batches.append(Batch(self._next, self._retry))
            self._next += 1
            self._opened_at = now
            self._full = False
        batch = self._batches[-1]
        batch.records.append(record)
        batch.size += size
        self.buffered_bytes += size
        self._full = (
            batch.size >= batching.batch_bytes or len(batch.records) >= batching.batch_records
        )
        return batch

    def _check_open(self) -> None:
        """Raise ValueError, `ProducerFailed` or `StreamClosed` if the producer accepts no more
        records."""
        if self._cause is not None and not self._closed:
            raise self._failed(self._cause, Outcome.REFUSED)  # this record is refused
        if self._closing is not None:
            error = StreamClosed(
                f"{self.what}: this producer closed the stream; it accepts no more appends",
                code="STREAM_CLOSED",
            )
            error.offset = self.offset
            raise error
        if self._closed:
            raise ValueError("the producer is closed")

    def close_stream(self, records: list[bytes]) -> Batch:
        """Close the stream after all offered records and these last ones; return the closing batch.

        Calling it again without records returns the same batch. Raises ValueError,
        `ProducerFailed`, `StreamClosed`."""
        if self._closing is not None and not records:
            return self._closing
        self._check_open()
        size = sum(len(record) + SEPARATOR_BYTES for record in records)
        if size > APPEND_BYTES_MAX:
            raise ValueError(
                f"the last records are one append of {size} bytes; the limit is {APPEND_BYTES_MAX}"
            )
        if records and not any(records):
            raise ValueError("an empty record cannot be appended")
        batch = Batch(self._next, self._retry)
        self._next += 1
        batch.records, batch.size, batch.closes = records, size, True
        self.buffered_bytes += size
        self._batches.append(batch)
        self._closing, self._full, self._flushing = batch, True, True
        return batch

    def flush(self) -> int:
        """Send the offered records without lingering. Return the number to pass to `is_settled`."""
        if self._batches:
            self._flushing = True
        return self._next

    def is_settled(self, end: int) -> bool:
        """Return True if all batches below a number are completed."""
        return not self._batches or self._batches[0].number >= end

    def take_settled(self) -> list[Settled]:
        """Return the batches completed since the last call."""
        settled, self.settled = self.settled, []
        return settled

    def close(self) -> None:
        """Refuse further records."""
        self._closed = True

    # --- requests out -----------------------------------------------------------------------------

    def due(self, now: float) -> HttpRequest | None:
        """Return the next request to send now. Pass its result to `on_result`, with the same
        request."""
        if self.phase is Phase.OPENING:
            return self._probe(now)
        if self.phase is Phase.FAILED or self._cause is not None:
            return None
        batch = self._waiting()
        return None if batch is None or self._ready_at(batch) > now else self._request(batch)

    def wake_at(self, now: float) -> float | None:
        """Return when `due` may return a request without further input; None if only input changes
        that."""
        if self.phase is Phase.OPENING:
            return None if self._probing or not self._batches else max(self._probe_not_before, now)
        if self.phase is Phase.FAILED or self._cause is not None:
            return None
        batch = self._waiting()
        return None if batch is None else self._ready_at(batch)

    def _waiting(self) -> Batch | None:
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

    def _ready_at(self, batch: Batch) -> float:
        filling = (
            batch is self._batches[-1]
            and not self._full
            and not self._flushing
            and not batch.attempts
        )
        return self._opened_at + self._batching.linger_seconds if filling else batch.not_before

    def _request(self, batch: Batch) -> HttpRequest:
        batch.sending = True
        batch.floor = self._batches[0].number
        batch.attempts += 1
        self.repeats += batch.attempts > 1
        if batch is self._batches[-1]:
            self._full = True
        if not batch.records:
            return self._post(self._epoch, batch.number, b"", closes=True)
        body = b"[" + b",".join(batch.records) + b"]" if self._json else b"".join(batch.records)
        return self._post(self._epoch, batch.number, body, closes=batch.closes)

    def _probe(self, now: float) -> HttpRequest | None:
        """Return an append that the server must refuse, because its sequence leaves a gap. The
        refusal carries the server's epoch and sequence."""
        if self._probing or not self._batches or self._probe_not_before > now:
            return None
        self._probing = True
        return self._post(self._epoch, PRODUCER_NUMBER_MAX, b"[null]" if self._json else b"?")

    def _post(self, epoch: int, number: int, body: bytes, *, closes: bool = False) -> HttpRequest:
        names = self.names
        headers = {
            "content-type": names.content_type,
            "producer-id": names.producer_id,
            "producer-epoch": str(epoch),
            "producer-seq": str(number),
        }
        if closes:
            headers["stream-closed"] = "true"
        return HttpRequest("POST", stream_target(names.stream), headers, body)

    # --- answers in -------------------------------------------------------------------------------

    def on_result(self, request: HttpRequest, effect_result: EffectResult) -> None:
        """Process the result of a request that `due` returned."""
        if self._probing:
            self._probing = False
            self._probed(effect_result)
            return
        number = int(request.headers["producer-seq"])
        batch = next((batch for batch in self._batches if batch.number == number), None)
        if batch is not None:  # otherwise a later response or a failure has completed it
            batch.sending = False
            self._judge(batch, effect_result)
        self._advance()

    def _judge(self, batch: Batch, effect_result: EffectResult) -> None:
        answer = answer_of(effect_result)
        verdict = judge(answer)
        if verdict is None:
            assert isinstance(answer, HttpResponse)
            if self._is_ours(batch, answer):
                self._applied(batch, answer)
                return
            answer, verdict = (
                Broken(sent=True, why="the response belongs to another append"),
                Verdict.PERHAPS,
            )
        if verdict is Verdict.NEVER:
            assert isinstance(answer, HttpResponse)
            self._never(batch, refused(answer, self.what))
            return
        batch.perhaps |= verdict is Verdict.PERHAPS
        pause = batch.backoff.pause(effect_result, retry_after(answer))
        if pause is None:
            self._fail(failure(answer, self.what, perhaps=batch.perhaps))
        else:
            batch.not_before = effect_result.now + pause

    def _is_ours(self, batch: Batch, answer: HttpResponse) -> bool:
        """Return True if the response can be the one to this batch.

        The response names the highest stored sequence, which is at least this batch's number."""
        known = answer.headers.get("producer-seq", "")
        epoch = answer.headers.get("producer-epoch", "")
        if "stream-next-offset" not in answer.headers:
            return False
        if not known:  # other implementations of the protocol may omit it
            return True
        return known.isdecimal() and int(known) >= batch.number and epoch == str(self._epoch)

    def _applied(self, batch: Batch, answer: HttpResponse) -> None:
        first_of_a_known_name = batch.number == 0 and not self.names.fresh and bool(batch.records)
        if first_of_a_known_name and answer.status == 204 and not batch.perhaps:
            batch.perhaps = True
            self._fail(
                OutcomeUnknown(
                    f"{self.what}: another producer with this id started under epoch "
                    f"{self._epoch} at the same time; use one id per producer"
                )
            )
            return
        self._settle(batch, appended(answer))

    def _settle(self, batch: Batch, receipt: Appended) -> None:
        self.offset = max(self.offset, receipt.offset)
        # earlier batches are applied too: the server stores no gaps
        while self._batches and self._batches[0].number <= batch.number:
            settled = self._batches.popleft()
            self.buffered_bytes -= settled.size
            self.applied += len(settled.records)
            self.settled.append(Settled(settled.receipt, receipt))
            self._steady += 1
        if self._steady >= STEADY_BATCHES:
            self._window, self._steady = min(self._window + 1, self._batching.in_flight), 0
        if not self._batches:
            self._flushing = False

    def _is_closed(self, error: Refused) -> bool:
        """Complete a closing batch without records, if it is the only one left. The stream is
        closed, by whichever client."""
        batch = self._closing
        if (
            not isinstance(error, StreamClosed)
            or batch is None
            or batch.records
            or len(self._batches) != 1
        ):
            return False
        self.phase = Phase.RUNNING
        self._settle(batch, Appended(offset=error.offset, closed=True))
        return True

    def _never(self, batch: Batch, error: Refused) -> None:
        if self._is_closed(error):
            return
        if isinstance(error, ProducerGap) and batch.floor <= error.expected < batch.number:
            # it overtook earlier batches and was not applied
            batch.held = batch is not self._batches[0]
            self._window, self._steady = max(1, self._window // 2), 0
            return
        if isinstance(error, ProducerGap):
            error.message = (
                f"{self.what}: the server lost the state of this producer; the stream was "
                "probably deleted and recreated"
            )
        if isinstance(error, ProducerFenced):
            error.message = (
                f"{self.what}: fenced by a newer run of this producer with epoch {error.epoch}"
            )
        self._fail(error)

    def _advance(self) -> None:
        """Release a held batch once it is the first, and finish a failure once no batch is in
        flight."""
        if self._batches and self._batches[0].held:
            self._batches[0].held = False
        if self._cause is not None and not any(batch.sending for batch in self._batches):
            self._finish(self._cause)

    def _probed(self, effect_result: EffectResult) -> None:
        answer = answer_of(effect_result)
        verdict = judge(answer)
        if isinstance(answer, HttpResponse) and verdict is Verdict.NEVER:
            self._claim(refused(answer, self.what))
        elif verdict is None:
            self._fail(Refused(f"{self.what}: the server does not store producer sequences"))
        else:
            pause = self._probe_trouble.pause(effect_result, retry_after(answer))
            if pause is None:
                self._fail(failure(answer, self.what, perhaps=False))
            else:
                self._probe_not_before = effect_result.now + pause
        self._advance()

    def _claim(self, error: Refused) -> None:
        """Take the epoch that follows from a refused probe, one without appends."""
        given = self.names.epoch
        if self._is_closed(error):
            return
        if error.code == "PRODUCER_EPOCH_START" or (
            isinstance(error, ProducerGap) and error.expected == 0
        ):
            self.phase = Phase.RUNNING
        elif isinstance(error, ProducerGap | ProducerFenced) and given is None:
            self._epoch = (error.epoch if isinstance(error, ProducerFenced) else self._epoch) + 1
            self.phase = Phase.RUNNING
        elif isinstance(error, ProducerGap):
            error.message = (
                f"{self.what}: epoch {given} was already used up to sequence "
                f"{error.expected - 1}; pass a higher epoch, or none"
            )
            self._fail(error)
        else:
            self._fail(error)

    # --- the end ----------------------------------------------------------------------------------

    def _fail(self, cause: ClientError) -> None:
        self._cause = self._cause or cause

    def abandon(self, why: str) -> None:
        """Stop sending. Results of requests in flight are ignored."""
        for batch in self._batches:
            if batch.sending:
                batch.sending, batch.perhaps = False, True
        perhaps = any(batch.perhaps for batch in self._batches)
        cause = (OutcomeUnknown if perhaps else Refused)(f"{self.what}: {why}")
        self._cause = self._cause or cause
        self._finish(self._cause)

    def _finish(self, cause: ClientError) -> None:
        """Complete all remaining batches with errors.

        The first ones are unknown if an attempt may have been applied. None is applied after one
        that certainly was not."""
        self.phase = Phase.FAILED
        batches = tuple(self._batches)
        self._batches.clear()
        self.buffered_bytes = 0
        unknown = tuple(itertools.takewhile(lambda batch: batch.perhaps, batches))
        self.unknown += sum(len(batch.records) for batch in unknown)
        self.refused += sum(len(batch.records) for batch in batches[len(unknown) :])
        self.failure = self._failed(cause, Outcome.UNKNOWN if unknown else Outcome.REFUSED)
        for batch in batches:
            self.settled.append(
                Settled(
                    batch.receipt,
                    self._failed(cause, Outcome.UNKNOWN if batch in unknown else Outcome.REFUSED),
                )
            )

    def _failed(self, cause: ClientError, outcome: Outcome) -> ProducerFailed:
        error = ProducerFailed(
            cause, applied=self.applied, refused=self.refused, unknown=self.unknown
        )
        error.outcome = outcome
        return error
