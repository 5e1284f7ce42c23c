"""The lease of a lane: its records as jobs, and the requests that keep, acknowledge and end it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from polynya.base.limits import (
    SUBSCRIPTION_PAUSE_MS_MAX,
    SUBSCRIPTION_TEXT_BYTES_MAX,
)
from polynya.base.msgpack import UNREADABLE
from polynya.base.offsets import parse_token
from polynya.client import errors
from polynya.client.lanes import Beat
from polynya.client.messages import (
    HttpRequest,
    HttpResponse,
)
from polynya.client.values import JSON_TYPE, Json, Page, Record

LETTER_BYTES_MAX = 1024 * 1024  # a larger record is not copied to the dead-letter stream


class LeasedStream(msgspec.Struct):
    """A stream of a lane, from a claim."""

    path: str
    acked_offset: str
    tail_offset: str
    has_pending: bool = False


class Failure(msgspec.Struct):
    """The record that failed last."""

    stream: str
    offset: str
    attempts: int


class Claim(msgspec.Struct):
    wake_id: str
    generation: int
    token: str
    streams: list[LeasedStream]
    lease_ttl_ms: int
    failure: Failure | None = None


class Done(msgspec.Struct):
    next_wake: bool = False


class GivenBack(msgspec.Struct):
    retry_after_ms: int = 0


class Wake(msgspec.Struct):
    subscription_id: str = ""
    type: str = ""


class Lease:
    """A lease on a lane.

    `handled` holds the cursors to acknowledge with the next request. `lost`: another worker may
    hold the lane. `handling_since`: when the current record, that of `job`, was handed out."""

    def __init__(self, target: str, claim: Claim, now: float) -> None:
        self._target = target
        self._claim = claim
        self.seconds = claim.lease_ttl_ms / 1000
        self.streams = claim.streams
        self.handled: dict[str, str] = {}
        self.began = self.acked_at = now
        self.handling_since: float | None = None
        self.job: Job | None = None
        self.lost = False

    def failed_attempts(self, link: LeasedStream) -> int:
        """Return how often the next record of a stream has failed, at all workers."""
        failure = self._claim.failure
        if failure is None or (failure.stream, failure.offset) != (link.path, link.acked_offset):
            return 0
        return failure.attempts

    def ack(self, *, done: bool = False, acks: bool = True) -> HttpRequest:
        """Return a request that advances the cursors to the handled records, and keeps or releases
        the lease."""
        handled = self.handled if acks else {}
        return self._request("ack", handled, {"done": done})

    def retry(self, job: Job) -> HttpRequest:
        """Return a request that gives a job back and ends the lease."""
        assert job.failure is not None
        pause, error = job.failure
        more: dict[str, Any] = {"stream": job.stream, "offset": job.offset, "error": error}
        if pause is not None:
            more["after_ms"] = round(pause * 1000)
        if job.is_last_attempt and len(job.data) <= LETTER_BYTES_MAX:
            more["record"] = (
                msgspec.Raw(job.data)
                if job.is_json
                else {"base64": b64encode(job.data).decode("ascii")}
            )
        return self._request("retry", self.handled, more)

    def _request(self, verb: str, handled: dict[str, str], more: dict[str, Any]) -> HttpRequest:
        body = {
            "wake_id": self._claim.wake_id,
            "generation": self._claim.generation,
            "acks": [{"stream": stream, "offset": offset} for stream, offset in handled.items()],
            **more,
        }
        headers = {"content-type": JSON_TYPE, "authorization": f"Bearer {self._claim.token}"}
        return HttpRequest(
            "POST",
            f"{self._target}/{verb}",
            headers,
            msgspec.json.encode(body),
            min(self.seconds, 30.0),
        )

    def beat(self) -> Beat:
        """Return a request that renews the lease while a record is handled, and what takes its
        outcome."""
        return self.ack(acks=False), self.beaten

    def beaten(self, what: object) -> None:
        """Process the response to a `beat`."""
        if isinstance(what, HttpResponse) and what.status in (401, 404, 409):
            self.lost = True


class Job:
    """A record to handle. Fetching the next job acknowledges it; `ack()` does so earlier, and
    `retry()` gives it back."""

    __slots__ = ("_attempts_max", "attempt", "failure", "is_acked", "is_json", "lease", "record")

    def __init__(
        self,
        record: Record,
        lease: Lease,
        attempts_max: int | None,
        attempt: int = 1,
        *,
        is_json: bool = True,
    ) -> None:
        self.record = record
        self.attempt = attempt  # how often the record was given, from 1
        self.is_json = is_json
        self.is_acked = False
        self.failure: tuple[float | None, str] | None = None  # the pause, and the error
        self.lease = lease
        self._attempts_max = attempts_max

    @property
    def is_last_attempt(self) -> bool:
        """True if the record goes to the dead-letter stream when it fails again."""
        return self._attempts_max is not None and self.attempt >= self._attempts_max

    @property
    def stream(self) -> str:
        return self.record.stream

    @property
    def offset(self) -> str:
        """The offset after the record."""
        return self.record.offset

    @property
    def data(self) -> bytes:
        return self.record.data

    @property
    def text(self) -> str:
        return self.record.text

    @property
    def value(self) -> Json:
        return self.record.value

    def decode(self, shape: type[Any]) -> Any:
        return self.record.decode(shape)

    def ack(self) -> None:
        """Mark the record as handled. The next cursor update, or the end of the worker, sends the
        acknowledgement."""
        self.is_acked, self.failure = True, None
        self.lease.handled[self.record.stream] = self.record.offset

    def retry(self, *, after: float | None = None, error: str = "") -> None:
        """Give the record back instead of acknowledging it. Fetching the next job, or the end of
        the worker, sends that.

        The lane pauses for `after` seconds, by default 1 s, doubled with each attempt up to a
        minute. After `max_attempts` of the group the record goes to the dead-letter stream, with
        `error`. Raises ValueError if the pause is invalid or the job was acknowledged."""
        if self.is_acked:
            raise ValueError("the job was acknowledged; call retry() instead of ack()")
        if after is not None and not 0 <= after <= SUBSCRIPTION_PAUSE_MS_MAX / 1000:
            raise ValueError(
                f"after={after} is invalid; expected 0 to {SUBSCRIPTION_PAUSE_MS_MAX // 1000} "
                "seconds"
            )
        self.failure = after, _shortened(error)


def numbered(page: Page) -> list[tuple[Record, int]]:
    """Pair records with their numbers. The number is 0 for foreign offsets and other content types,
    which keeps them in their stream's lane."""
    records = page.records
    if not page.is_json:
        return [(record, 0) for record in records]
    return [
        (record, token[0] - 1 if (token := parse_token(record.offset)) else 0) for record in records
    ]


def claimed(answer: HttpResponse) -> Claim:
    return _decoded(answer, Claim)  # type: ignore[no-any-return]


def given_back(answer: HttpResponse) -> GivenBack:
    return _decoded(answer, GivenBack)  # type: ignore[no-any-return]


def _shortened(error: str) -> str:
    """Return an error as the server takes it."""
    return error.encode("utf-8", "replace")[:SUBSCRIPTION_TEXT_BYTES_MAX].decode("utf-8", "ignore")


def done_in(answer: HttpResponse) -> Done:
    return _decoded(answer, Done) if answer.body else Done()


def _decoded(answer: HttpResponse, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except UNREADABLE:
        raise errors.AnswerDamaged(
            "the response does not describe a subscription", status=answer.status
        ) from None
