"""What can go wrong for a user of the client, sorted by what became of the request: applied, refused, or unknown."""

from __future__ import annotations

import enum

import msgspec

from polynya.client.messages import HttpResponse


class Outcome(enum.Enum):
    """What became of a request. A retry of what was REFUSED is safe; one of what is UNKNOWN may apply it a second time."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class ClientError(Exception):
    """All errors of the client. `code` is the server's (docs/errors.md) or "", `status` its HTTP status or 0, and `request_id` finds the
    request in the server's log. `retry_after` are the seconds that the server asked to wait, or 0."""

    outcome = Outcome.REFUSED
    retry_after = 0.0

    def __init__(self, message: str, *, code: str = "", status: int = 0, request_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        tail = f" [{self.code}]" if self.code else ""
        return f"{self.message}{tail}" + (f" (request {self.request_id})" if self.request_id else "")


class Refused(ClientError):
    """Certainly nothing was applied, and the same request would be refused again."""


class Unavailable(ClientError):
    """Certainly nothing was applied: no server there, or one that cannot take it now. Trying went on for as long as the policy says."""


class OutcomeUnknown(ClientError):
    """It may have been applied or not: no answer came, or one that says so. Read back, or use a producer, whose repeats are safe."""

    outcome = Outcome.UNKNOWN


class AnswerDamaged(ClientError):
    """The server applied it, but its answer lacks what it should say."""

    outcome = Outcome.APPLIED


class AccessDenied(Refused):
    """The server wants a token, does not know the given one, or it does not allow this."""


class StreamNotFound(Refused):
    """There is no such stream."""


class StreamGone(Refused):
    """The stream was deleted."""


class StreamReplaced(Refused):
    """The stream was deleted and created again since this handle or reader first saw it. What was read is of the former one."""


class StreamExists(Refused):
    """The stream exists with another configuration, or its name is still in use."""


class StreamClosed(Refused):
    """Nothing can be appended any more. `offset` is the stream's final one."""

    offset = ""


class Trimmed(Refused):
    """The offset lies before the first kept record. `retained_offset` is where reading can begin."""

    retained_offset = ""


class SequenceRegression(Refused):
    """`Stream-Seq` was not greater than the last one."""


class ProducerFenced(Refused):
    """A newer run of the same producer has taken over. `epoch` is its epoch."""

    epoch = 0


class ProducerGap(Refused):
    """The server expects another sequence: it does not know this producer any more, or another one writes under its name."""

    expected = 0
    received = 0


class ProducerFailed(ClientError):
    """The producer cannot go on; `cause` says why. Of its records `applied` are durable, `refused` certainly are not stored, and of
    `unknown` (the next after the applied ones) nobody can tell. Batches keep their order, so none is applied after a gap."""

    def __init__(self, cause: ClientError, *, applied: int, refused: int, unknown: int) -> None:
        said = f"{cause.message} ({applied} records applied, {refused} refused" + (f", {unknown} unknown)" if unknown else ")")
        super().__init__(said, code=cause.code, status=cause.status, request_id=cause.request_id)
        self.cause = cause
        self.applied = applied
        self.refused = refused
        self.unknown = unknown
        self.outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED


class LeaseLost(Refused):
    """The lease on a group's work is over: another worker may have it. What was not acknowledged is given again, perhaps to another."""


_BY_CODE: dict[str, type[Refused]] = {
    "UNAUTHORIZED": AccessDenied,
    "TOKEN_REFUSED": AccessDenied,
    "FORBIDDEN": AccessDenied,
    "NOT_FOUND": StreamNotFound,
    "GONE": StreamGone,
    "OTHER_LIFE": StreamReplaced,
    "INCARNATION_MISMATCH": StreamReplaced,
    "EXISTS_DIFFERENT": StreamExists,
    "DELETED_IN_USE": StreamExists,
    "SUBSCRIPTION_ALREADY_EXISTS": StreamExists,
    "STREAM_CLOSED": StreamClosed,
    "TRIMMED": Trimmed,
    "SEQ_REGRESSION": SequenceRegression,
    "PRODUCER_STALE": ProducerFenced,
    "PRODUCER_GAP": ProducerGap,
    "FENCED": LeaseLost,
    "TOKEN_EXPIRED": LeaseLost,
}


_WORDS = {  # for an answer without a body, as one to HEAD
    "NOT_FOUND": "there is no such stream; create() makes it",
    "GONE": "the stream was deleted",
    "UNAUTHORIZED": "the server needs a token, or does not know the given one",
}


class _Told(msgspec.Struct):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _Body(msgspec.Struct):
    error: _Told


def refused(answer: HttpResponse, what: str) -> Refused:
    """The typed error of a deterministic no. `what` is what was asked for, as in "append to 'orders'"."""
    told = said(answer)
    code = told.code or _code_of(answer)
    message = _WORDS.get(code, told.message) if not answer.body else told.message
    error = _BY_CODE.get(code, Refused)(f"{what}: {message}", code=code, status=answer.status, request_id=told.request_id)
    headers = answer.headers
    if isinstance(error, StreamClosed):
        error.offset = headers.get("stream-next-offset", "")
    elif isinstance(error, Trimmed):
        error.retained_offset = headers.get("stream-retained-offset", "")
    elif isinstance(error, ProducerFenced):
        error.epoch = _number(headers.get("producer-epoch"))
    elif isinstance(error, ProducerGap):
        error.expected = _number(headers.get("producer-expected-seq"))
        error.received = _number(headers.get("producer-received-seq"))
    return error


def said(answer: HttpResponse) -> _Told:
    """What an error's body says, whatever it is."""
    try:
        return msgspec.json.decode(answer.body, type=_Body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = answer.body[:200].decode(errors="replace").strip()
        return _Told("", f"the server answered {answer.status}" + (f": {text}" if text else ""), answer.headers.get("x-request-id", ""))


def _code_of(answer: HttpResponse) -> str:
    """The code of an answer without a body that says it: one to HEAD, or one of another server of the protocol."""
    headers = answer.headers
    if answer.status == 409 and "stream-closed" in headers:
        return "STREAM_CLOSED"
    if answer.status == 409 and "producer-expected-seq" in headers:
        return "PRODUCER_GAP"
    if answer.status == 403 and "producer-epoch" in headers:
        return "PRODUCER_STALE"
    if answer.status == 410 and "stream-retained-offset" in headers:
        return "TRIMMED"
    return {401: "UNAUTHORIZED", 404: "NOT_FOUND", 410: "GONE", 412: "INCARNATION_MISMATCH"}.get(answer.status, "")


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) <= 16 else 0
