"""The core of a producer: it makes the requests, judges the responses, and ends with the first
permanent refusal."""

from __future__ import annotations

import enum

from polynya.base.limits import APPEND_BYTES_MAX
from polynya.client import errors
from polynya.client.calls import Verdict, answer_of, failure, judge, retry_after
from polynya.client.messages import Broken, EffectResult, HttpRequest, HttpResponse, Retry
from polynya.client.producing.batches import SEPARATOR_BYTES, Batch, Batching, BatchQueue
from polynya.client.producing.claims import Claim, Names
from polynya.client.producing.receipts import Receipts
from polynya.client.values import Appended, Json, encode, is_json, to_bytes
from polynya.client.verbs import appended


class Phase(enum.Enum):
    OPENING = "the epoch is being claimed"
    RUNNING = "batches are sent"
    FAILED = "nothing more is sent"


class ProducerCore:
    """The state machine. Call `offer` for each record, `due` for the next request, and `on_result`
    with its result.

    `wake_at` says when to call `due` again. `receipts` collects completed batches until the client
    takes them."""

    def __init__(self, names: Names, batching: Batching, retry: Retry) -> None:
        self.names = names
        self.batches = BatchQueue(batching, retry)
        self.receipts = Receipts()
        self.phase = Phase.RUNNING if names.fresh else Phase.OPENING
        self.repeats = 0  # retried requests
        self._json = is_json(names.content_type)
        self._claim = Claim(names, retry)
        self._cause: errors.ClientError | None = None
        self._closed = False
        self._closing: Batch | None = None  # the batch that closes the stream

    @property
    def is_idle(self) -> bool:
        """True if no batch waits for a response."""
        return not self.batches

    @property
    def is_over(self) -> bool:
        """True if no further request will be sent."""
        return self.phase is Phase.FAILED or (self._closed and self.is_idle)

    @property
    def epoch(self) -> int:
        return self._claim.epoch

    # --- records in -------------------------------------------------------------------------------

    def encode(self, record: Json) -> bytes:
        """Encode a record. Raises TypeError, ValueError."""
        return encode(record) if self._json else to_bytes(record)

    def has_room(self, size: int) -> bool:
        """Return True if a record of `size` bytes can be offered now.

        A single record always fits. A record that `offer` would refuse need not wait."""
        return (
            self._closed
            or self._closing is not None
            or self.batches.has_room(size + SEPARATOR_BYTES)
        )

    def offer(self, record: bytes, now: float) -> Batch:
        """Add a record to a batch and return the batch; a new batch has no receipt yet. Raises
        ValueError, `ProducerFailed`."""
        self._check_open()
        if len(record) + SEPARATOR_BYTES > APPEND_BYTES_MAX:
            raise ValueError(f"the record has {len(record)} bytes; the limit is {APPEND_BYTES_MAX}")
        if not record:
            raise ValueError("an empty record cannot be appended")
        return self.batches.add(record, now)

    def _check_open(self) -> None:
        """Raise ValueError, `ProducerFailed` or `StreamClosed` if the producer accepts no more
        records."""
        if self._cause is not None and not self._closed:
            raise self.receipts.error(self._cause, errors.Outcome.REFUSED)  # this record is refused
        if self._closing is not None:
            error = errors.StreamClosed(
                f"{self.names.what}: this producer closed the stream; it accepts no more appends",
                code="STREAM_CLOSED",
            )
            error.offset = self.receipts.offset
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
        self._closing = self.batches.add_closing(records, size)
        return self._closing

    def close(self) -> None:
        """Refuse further records."""
        self._closed = True

    # --- requests out -----------------------------------------------------------------------------

    def due(self, now: float) -> HttpRequest | None:
        """Return the next request to send now. Pass its result to `on_result`, with the same
        request."""
        if self.phase is Phase.OPENING:
            return self._claim.due(now) if self.batches else None
        if self.phase is Phase.FAILED or self._cause is not None:
            return None
        batch = self.batches.waiting()
        return None if batch is None or self.batches.ready_at(batch) > now else self._request(batch)

    def wake_at(self, now: float) -> float | None:
        """Return when `due` may return a request without further input; None if only input changes
        that."""
        if self.phase is Phase.OPENING:
            return self._claim.wake_at(now) if self.batches else None
        if self.phase is Phase.FAILED or self._cause is not None:
            return None
        batch = self.batches.waiting()
        return None if batch is None else self.batches.ready_at(batch)

    def _request(self, batch: Batch) -> HttpRequest:
        self.batches.begin(batch)
        self.repeats += batch.attempts > 1
        body = b",".join(batch.records) if self._json else b"".join(batch.records)
        if self._json and batch.records:
            body = b"[" + body + b"]"
        return self.names.append(self.epoch, batch.number, body, closes=batch.closes)

    # --- answers in -------------------------------------------------------------------------------

    def on_result(self, request: HttpRequest, effect_result: EffectResult) -> None:
        """Process the result of a request that `due` returned."""
        if self._claim.probing:
            self._claim.probing = False
            self._probed(effect_result)
        else:
            batch = self.batches.numbered(int(request.headers["producer-seq"]))
            if batch is not None:  # otherwise a later response or a failure has completed it
                batch.sending = False
                self._judge(batch, effect_result)
        self._advance()

    def _judge(self, batch: Batch, effect_result: EffectResult) -> None:
        answer = answer_of(effect_result)
        verdict = judge(answer)
        if verdict is None:
            assert isinstance(answer, HttpResponse)
            if _is_ours(batch, self.epoch, answer):
                self._applied(batch, answer)
                return
            answer, verdict = (
                Broken(sent=True, why="the response belongs to another append"),
                Verdict.PERHAPS,
            )
        if verdict is Verdict.NEVER:
            assert isinstance(answer, HttpResponse)
            self._never(batch, errors.refused(answer, self.names.what))
            return
        batch.perhaps |= verdict is Verdict.PERHAPS
        pause = batch.backoff.pause(effect_result, retry_after(answer))
        if pause is None:
            self._fail(failure(answer, self.names.what, perhaps=batch.perhaps))
        else:
            batch.not_before = effect_result.now + pause

    def _applied(self, batch: Batch, answer: HttpResponse) -> None:
        first_of_a_known_name = batch.number == 0 and not self.names.fresh and bool(batch.records)
        if first_of_a_known_name and answer.status == 204 and not batch.perhaps:
            batch.perhaps = True
            self._fail(
                errors.OutcomeUnknown(
                    f"{self.names.what}: another producer with this id started under epoch "
                    f"{self.epoch} at the same time; use one id per producer"
                )
            )
            return
        self._settle(batch, appended(answer))

    def _settle(self, batch: Batch, receipt: Appended) -> None:
        # earlier batches are applied too: the server stores no gaps
        self.receipts.apply(self.batches.settle(batch.number), receipt)

    def _is_closed(self, error: errors.Refused) -> bool:
        """Complete a closing batch without records, if it is the only one left. The stream is
        closed, by whichever client."""
        batch = self._closing
        if (
            not isinstance(error, errors.StreamClosed)
            or batch is None
            or batch.records
            or len(self.batches) != 1
        ):
            return False
        self.phase = Phase.RUNNING
        self._settle(batch, Appended(offset=error.offset, closed=True))
        return True

    def _never(self, batch: Batch, error: errors.Refused) -> None:
        if self._is_closed(error):
            return
        if isinstance(error, errors.ProducerGap) and batch.floor <= error.expected < batch.number:
            self.batches.hold(batch)  # it overtook earlier batches and was not applied
            return
        if isinstance(error, errors.ProducerGap):
            error.message = (
                f"{self.names.what}: the server lost the state of this producer; the stream was "
                "probably deleted and recreated"
            )
        if isinstance(error, errors.ProducerConflict):
            error.message = (
                f"{self.names.what}: epoch {self.epoch} has other records under sequence "
                f"{batch.number}; another process writes under the same id and epoch"
            )
        if isinstance(error, errors.ProducerFenced):
            error.message = (
                f"{self.names.what}: fenced by a newer run of this producer with epoch "
                f"{error.epoch}"
            )
        self._fail(error)

    def _probed(self, effect_result: EffectResult) -> None:
        answer, what = answer_of(effect_result), self.names.what
        verdict = judge(answer)
        if isinstance(answer, HttpResponse) and verdict is Verdict.NEVER:
            self._take_epoch(errors.refused(answer, what))
        elif verdict is None:
            self._fail(errors.Refused(f"{what}: the server does not store producer sequences"))
        elif not self._claim.retry(effect_result, retry_after(answer)):
            self._fail(failure(answer, what, perhaps=False))

    def _take_epoch(self, error: errors.Refused) -> None:
        if self._is_closed(error):
            return
        cause = self._claim.take(error)
        if cause is None:
            self.phase = Phase.RUNNING
        else:
            self._fail(cause)

    def _advance(self) -> None:
        """Release a held batch once it is the first, and finish a failure once no batch is in
        flight."""
        self.batches.release()
        if self._cause is not None and not self.batches.is_sending:
            self._finish(self._cause)

    # --- the end ----------------------------------------------------------------------------------

    def _fail(self, cause: errors.ClientError) -> None:
        self._cause = self._cause or cause

    def abandon(self, why: str) -> None:
        """Stop sending. Results of requests in flight are ignored."""
        perhaps = self.batches.stop()
        self._fail(
            (errors.OutcomeUnknown if perhaps else errors.Refused)(f"{self.names.what}: {why}")
        )
        assert self._cause is not None
        self._finish(self._cause)

    def _finish(self, cause: errors.ClientError) -> None:
        """Complete all remaining batches with errors."""
        self.phase = Phase.FAILED
        self.receipts.fail(self.batches.clear(), cause)


def _is_ours(batch: Batch, epoch: int, answer: HttpResponse) -> bool:
    """Return True if the response can be the one to this batch.

    The response names the highest stored sequence, which is at least this batch's number."""
    if "stream-next-offset" not in answer.headers:
        return False
    known = answer.headers.get("producer-seq", "")
    if not known:  # other implementations of the protocol may omit it
        return True
    found = answer.headers.get("producer-epoch", "")
    return known.isdecimal() and int(known) >= batch.number and found == str(epoch)
