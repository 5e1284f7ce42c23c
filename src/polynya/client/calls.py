"""One request run to completion: sent, retried where that is safe, and answered or failed with a
typed error."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.client import errors
from polynya.client.messages import (
    Backoff,
    Broken,
    EffectResult,
    HttpRequest,
    HttpResponse,
    Operation,
    Pause,
    Retry,
    Send,
)

Result = TypeVar("Result")
Shape = TypeVar("Shape")

LATER = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses of transient failures
REFUSED_BY_STATUS = frozenset((425, 429))  # statuses that imply that nothing was applied
# transient, but not within a retry period
NOT_LATER = frozenset(("PRODUCER_LIMIT", "STREAM_QUOTA", "TOO_MANY_SUBSCRIPTIONS"))


class Verdict(enum.Enum):
    """The consequence of a failure for the request."""

    NOTHING = "nothing was applied; a retry may succeed"
    PERHAPS = "the request may have been applied; a retry may succeed"
    NEVER = "refused permanently"


def judge(what: HttpResponse | Broken) -> Verdict | None:
    """Classify a response or a broken attempt; None means success."""
    if isinstance(what, Broken):
        return Verdict.PERHAPS if what.sent else Verdict.NOTHING
    if 200 <= what.status < 300 or what.status == 304:
        return None
    outcome = what.headers.get("stream-outcome", "")
    if what.status in LATER:
        if errors.said(what).code in NOT_LATER:
            return Verdict.NEVER
        return (
            Verdict.NOTHING
            if outcome == "refused" or what.status in REFUSED_BY_STATUS
            else Verdict.PERHAPS
        )
    return Verdict.PERHAPS if outcome == "unknown" else Verdict.NEVER


def call(
    request: HttpRequest,
    retry: Retry,
    what: str,
    take: Callable[[HttpResponse], Result],
    *,
    repeatable: bool,
    again: Callable[[], HttpRequest] | None = None,
) -> Operation[Result]:
    """Send a request until it succeeds, and return `take(response)`. Raises `ClientError`.

    An `AnswerDamaged` raised by `take` counts as a failed attempt. `repeatable` marks an idempotent
    request, which is retried even when an attempt may have been applied. `again` builds the request
    to send after a response that broke off."""
    backoff = Backoff(retry)
    reads = request.method in ("GET", "HEAD")
    perhaps = False  # an attempt may have been applied
    while True:
        effect_result = yield Send(request)
        outcome = answer_of(effect_result)
        verdict = judge(outcome)
        damage: errors.AnswerDamaged | None = None
        if verdict is None:
            assert isinstance(outcome, HttpResponse)
            try:
                return take(outcome)
            except errors.AnswerDamaged as damaged:
                damage, verdict = damaged, Verdict.PERHAPS
        if verdict is Verdict.NEVER:
            assert isinstance(outcome, HttpResponse)
            error = errors.refused(outcome, what)
            if perhaps and not reads:
                error.outcome = errors.Outcome.UNKNOWN  # an earlier attempt may have been applied
            raise error
        perhaps |= verdict is Verdict.PERHAPS
        pause = (
            backoff.pause(effect_result, retry_after(outcome))
            if repeatable or not perhaps
            else None
        )
        if pause is None:
            raise damage or failure(outcome, what, perhaps=perhaps and not reads)
        yield Pause(pause)
        if again is not None and verdict is Verdict.PERHAPS:
            request = again()


def answer_of(effect_result: EffectResult) -> HttpResponse | Broken:
    assert isinstance(effect_result.what, HttpResponse | Broken)
    return effect_result.what


def retry_after(what: HttpResponse | Broken) -> float:
    """Return the Retry-After header in seconds; 0 when it is missing or a date."""
    text = what.headers.get("retry-after", "") if isinstance(what, HttpResponse) else ""
    return float(text) if text.isdecimal() and text.isascii() and len(text) < 7 else 0.0


def failure(last: HttpResponse | Broken, what: str, *, perhaps: bool) -> errors.ClientError:
    """Return the error to raise when retries are exhausted. `perhaps`: an attempt may have been
    applied."""
    kind = errors.OutcomeUnknown if perhaps else errors.Unavailable
    if isinstance(last, Broken):
        return kind(
            f"{what}: {'no response' if last.sent else 'the server is unreachable'}: {last.why}"
        )
    body = errors.said(last)
    error = kind(
        f"{what}: {body.message}", code=body.code, status=last.status, request_id=body.request_id
    )
    error.retry_after = retry_after(last)
    return error


def header(answer: HttpResponse, name: str, what: str) -> str:
    """Return a header that a success must have. Raises `AnswerDamaged`."""
    value = answer.headers.get(name)
    if value is None:
        raise errors.AnswerDamaged(
            f"{what}: the response lacks {name}; check that the URL is a Durable Streams server",
            status=answer.status,
        )
    return value


def decoded(answer: HttpResponse, shape: type[Shape], what: str, complaint: str = "") -> Shape:
    """Decode the body of a response to `what`. Raises `AnswerDamaged`, with the complaint or the
    reason."""
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except UNREADABLE as error:
        raise errors.AnswerDamaged(
            f"{what}: {complaint or f'the response is malformed: {error}'}", status=answer.status
        ) from None


def is_true(answer: HttpResponse, name: str) -> bool:
    return answer.headers.get(name, "").lower() == "true"


def stream_target(name: str, query: Mapping[str, str] | None = None) -> str:
    """Return the URL path and query of a stream; `name` is as shown in listings."""
    return f"/v1/stream/{quoted_name(name)}" + (f"?{urlencode(query)}" if query else "")


def quoted_name(name: str) -> str:
    """Quote a stream name for a URL.

    The segments '.' and '..' are quoted too, so that the server refuses them. The HTTP library
    would resolve them and reach another stream."""
    return "/".join(
        segment.replace(".", "%2E") if segment in (".", "..") else segment
        for segment in quote(name, safe="/").split("/")
    )
