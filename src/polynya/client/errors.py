"""The errors of the client, classified by the outcome of the request: applied, refused, or
unknown."""

from __future__ import annotations

import enum

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.client.messages import HttpResponse


class Outcome(enum.Enum):
    """The outcome of a request. Retrying a REFUSED request is safe. Retrying one with an UNKNOWN
    outcome may apply it twice."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class ClientError(Exception):
    """The base of all client errors.

    `code` is the server's error code (docs/errors.md) or "". `status` is the HTTP status or 0.
    `request_id` identifies the request in the server's log. `retry_after` is the wait in seconds
    that the server asked for, or 0. `outcome` says whether the request was applied."""

    outcome = Outcome.REFUSED
    retry_after = 0.0

    def __init__(
        self, message: str, *, code: str = "", status: int = 0, request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        tail = f" [{self.code}]" if self.code else ""
        return f"{self.message}{tail}" + (
            f" (request {self.request_id})" if self.request_id else ""
        )


class Refused(ClientError):
    """The server refused the request and applied nothing. The same request would be refused
    again."""


class Unavailable(ClientError):
    """No server was reachable or ready, and nothing was applied. Raised when the retry policy is
    exhausted."""


class OutcomeUnknown(ClientError):
    """The request may have been applied: the response was lost, or said so. Read the stream back,
    or use a producer, whose retries are idempotent."""

    outcome = Outcome.UNKNOWN


class AnswerDamaged(ClientError):
    """The server applied the request, but its response lacks required data."""

    outcome = Outcome.APPLIED


class AccessDenied(Refused):
    """The token is missing, unknown, or lacks the permission."""


class StreamNotFound(Refused):
    """The stream does not exist."""


class StreamGone(Refused):
    """The stream was deleted."""


class StreamReplaced(Refused):
    """The stream was deleted and recreated since this handle or reader first used it. Records read
    so far belong to the deleted stream."""


class StreamExists(Refused):
    """The stream exists with another configuration, or its name is still in use."""


class StreamClosed(Refused):
    """The stream is closed and accepts no appends. `offset` is its final offset."""

    offset = ""


class Trimmed(Refused):
    """The offset is before the first retained record. Reading can start at `retained_offset`."""

    retained_offset = ""


class SequenceRegression(Refused):
    """The `Stream-Seq` was not greater than the last one."""


class ConditionFailed(Refused):
    """The tail of the stream is not where the append demands it: another writer was first. `offset`
    is the tail, and the condition to try next once what is before it was read."""

    offset = ""


class ProducerFenced(Refused):
    """A newer run of the same producer id has taken over. `epoch` is its epoch."""

    epoch = 0


class ProducerGap(Refused):
    """The server expects another sequence number: it no longer knows this producer, or another
    process writes under the same id."""

    expected = 0
    received = 0


class ProducerConflict(Refused):
    """The sequence number was used for other records: another process writes under the same id and
    epoch, or the records were changed before they were sent again. Nothing was appended."""


class ProducerFailed(ClientError):
    """The producer failed and accepts no more records; `cause` is the reason.

    Of its records, `applied` are durable and `refused` are certainly not stored. The next `unknown`
    records after the applied ones may be stored. Batches stay in order: none is applied after a
    gap."""

    def __init__(self, cause: ClientError, *, applied: int, refused: int, unknown: int) -> None:
        said = f"{cause.message} ({applied} records applied, {refused} refused" + (
            f", {unknown} unknown)" if unknown else ")"
        )
        super().__init__(said, code=cause.code, status=cause.status, request_id=cause.request_id)
        self.cause = cause
        self.applied = applied
        self.refused = refused
        self.unknown = unknown
        self.outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED


class LeaseLost(Refused):
    """The lease on a group's lane has expired: another worker may hold it. Unacknowledged records
    are delivered again."""


_BY_CODE: dict[str, type[Refused]] = {
    "UNAUTHORIZED": AccessDenied,
    "TOKEN_REFUSED": AccessDenied,
    "FORBIDDEN": AccessDenied,
    "NOT_FOUND": StreamNotFound,
    "GONE": StreamGone,
    "STREAM_RECREATED": StreamReplaced,
    "INCARNATION_MISMATCH": StreamReplaced,
    "EXISTS_DIFFERENT": StreamExists,
    "DELETED_IN_USE": StreamExists,
    "SUBSCRIPTION_ALREADY_EXISTS": StreamExists,
    "STREAM_CLOSED": StreamClosed,
    "TRIMMED": Trimmed,
    "SEQ_REGRESSION": SequenceRegression,
    "PRECONDITION": ConditionFailed,
    "OFFSET_CONFLICT": ConditionFailed,
    "PRODUCER_STALE": ProducerFenced,
    "PRODUCER_GAP": ProducerGap,
    "PRODUCER_CONFLICT": ProducerConflict,
    "FENCED": LeaseLost,
    "TOKEN_EXPIRED": LeaseLost,
}


_WORDS = {  # for responses without a body, such as those to HEAD
    "NOT_FOUND": "the stream does not exist; create() creates it",
    "GONE": "the stream was deleted",
    "UNAUTHORIZED": "the server requires a token, or does not accept the given one",
    "FORBIDDEN": "the token does not allow this operation",
}


class _ErrorBody(msgspec.Struct):
    code: str = ""
    message: str = ""
    request_id: str = ""
    reason: str = ""  # of `NONE_APPENDED`: the code that the refused append has alone
    next_offset: str = ""


class _Body(msgspec.Struct):
    error: _ErrorBody


def refused(answer: HttpResponse, what: str) -> Refused:
    """Return the typed error of a refusal that no retry helps. `what` names the operation, as in
    "append to 'orders'"."""
    body = said(answer)
    code = body.code or _code_of(answer)
    message = _WORDS.get(code, body.message) if not answer.body else body.message
    error = _BY_CODE.get(body.reason or code, Refused)(
        f"{what}: {message}", code=code, status=answer.status, request_id=body.request_id
    )
    headers = answer.headers
    if isinstance(error, StreamClosed | ConditionFailed):
        error.offset = headers.get("stream-next-offset", body.next_offset)
    elif isinstance(error, Trimmed):
        error.retained_offset = headers.get("stream-retained-offset", "")
    elif isinstance(error, ProducerFenced):
        error.epoch = _number(headers.get("producer-epoch"))
    elif isinstance(error, ProducerGap):
        error.expected = _number(headers.get("producer-expected-seq"))
        error.received = _number(headers.get("producer-received-seq"))
    return error


def said(answer: HttpResponse) -> _ErrorBody:
    """Parse an error response of any form."""
    try:
        return msgspec.json.decode(answer.body, type=_Body).error
    except UNREADABLE:
        text = answer.body[:200].decode(errors="replace").strip()
        return _ErrorBody(
            "",
            f"the server responded {answer.status}" + (f": {text}" if text else ""),
            answer.headers.get("x-request-id", ""),
        )


def _code_of(answer: HttpResponse) -> str:
    """Derive the error code of a response without one: to HEAD, or from another implementation of
    the protocol."""
    headers = answer.headers
    if answer.status == 409 and "stream-closed" in headers:
        return "STREAM_CLOSED"
    if answer.status == 409 and "producer-expected-seq" in headers:
        return "PRODUCER_GAP"
    if answer.status == 403 and "producer-epoch" in headers:
        return "PRODUCER_STALE"
    if answer.status == 412 and "etag" in headers:
        return "PRECONDITION"
    if answer.status == 410 and "stream-retained-offset" in headers:
        return "TRIMMED"
    return {
        401: "UNAUTHORIZED",
        403: "FORBIDDEN",
        404: "NOT_FOUND",
        410: "GONE",
        412: "INCARNATION_MISMATCH",
    }.get(answer.status, "")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) <= 16 else 0
