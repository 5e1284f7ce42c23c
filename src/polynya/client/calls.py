"""One request to its end: sent, sent again where that is safe, and answered or failed with a typed error."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode

from polynya.client.errors import AnswerDamaged, ClientError, Outcome, OutcomeUnknown, Unavailable, refused, said
from polynya.client.messages import Broken, Heard, HttpRequest, HttpResponse, Pause, Retry, Send, Talk, Trouble

Result = TypeVar("Result")

LATER = frozenset((408, 425, 429, 500, 502, 503, 504))  # statuses that may pass
REFUSED_BY_STATUS = frozenset((425, 429))  # whose meaning alone says that nothing was applied
NOT_LATER = frozenset(("PRODUCER_LIMIT", "STREAM_QUOTA", "TOO_MANY_SUBSCRIPTIONS"))  # passes, but not soon


class Verdict(enum.Enum):
    """What a failure means for the request."""

    NOTHING = "nothing was applied, and it may pass"
    PERHAPS = "it may have been applied, and it may pass"
    NEVER = "it is refused for good"


def judge(what: HttpResponse | Broken) -> Verdict | None:
    """None: a success."""
    if isinstance(what, Broken):
        return Verdict.PERHAPS if what.sent else Verdict.NOTHING
    if 200 <= what.status < 300 or what.status == 304:
        return None
    outcome = what.headers.get("stream-outcome", "")
    if what.status in LATER:
        if said(what).code in NOT_LATER:
            return Verdict.NEVER
        return Verdict.NOTHING if outcome == "refused" or what.status in REFUSED_BY_STATUS else Verdict.PERHAPS
    return Verdict.PERHAPS if outcome == "unknown" else Verdict.NEVER


def call(
    request: HttpRequest,
    retry: Retry,
    what: str,
    take: Callable[[HttpResponse], Result],
    *,
    repeatable: bool,
    again: Callable[[], HttpRequest] | None = None,
) -> Talk[Result]:
    """What `take` makes of the successful answer; when it raises `AnswerDamaged`, that is a failure like others. `repeatable`: doing it
    twice does no more than doing it once, so it is sent again also when an attempt may have been applied. `again` makes the request to
    send after an answer that broke off. Raises `ClientError`."""
    trouble = Trouble(retry)
    reads = request.method in ("GET", "HEAD")
    perhaps = False  # an attempt may have been applied
    while True:
        heard = yield Send(request)
        outcome = answer_of(heard)
        verdict = judge(outcome)
        damage: AnswerDamaged | None = None
        if verdict is None:
            assert isinstance(outcome, HttpResponse)
            try:
                return take(outcome)
            except AnswerDamaged as damaged:
                damage, verdict = damaged, Verdict.PERHAPS
        if verdict is Verdict.NEVER:
            assert isinstance(outcome, HttpResponse)
            error = refused(outcome, what)
            if perhaps and not reads:
                error.outcome = Outcome.UNKNOWN  # this attempt was refused; an earlier one may have been applied
            raise error
        perhaps |= verdict is Verdict.PERHAPS
        pause = trouble.pause(heard, retry_after(outcome)) if repeatable or not perhaps else None
        if pause is None:
            raise damage or failure(outcome, what, perhaps=perhaps and not reads)
        yield Pause(pause)
        if again is not None and verdict is Verdict.PERHAPS:
            request = again()


def answer_of(heard: Heard) -> HttpResponse | Broken:
    assert isinstance(heard.what, HttpResponse | Broken)
    return heard.what


def retry_after(what: HttpResponse | Broken) -> float:
    """Seconds; 0 when nothing is said, or a date."""
    text = what.headers.get("retry-after", "") if isinstance(what, HttpResponse) else ""
    return float(text) if text.isdecimal() and text.isascii() and len(text) < 7 else 0.0


def failure(last: HttpResponse | Broken, what: str, *, perhaps: bool) -> ClientError:
    """The error when trying is over; `perhaps`: some attempt may have been applied."""
    kind = OutcomeUnknown if perhaps else Unavailable
    if isinstance(last, Broken):
        return kind(f"{what}: {'no answer came' if last.sent else 'the server cannot be reached'}: {last.why}")
    told = said(last)
    error = kind(f"{what}: {told.message}", code=told.code, status=last.status, request_id=told.request_id)
    error.retry_after = retry_after(last)
    return error


def header(answer: HttpResponse, name: str, what: str) -> str:
    """A header that a success must have. Raises `AnswerDamaged`."""
    value = answer.headers.get(name)
    if value is None:
        raise AnswerDamaged(f"{what}: the answer lacks {name}; is this a server of streams?", status=answer.status)
    return value


def is_true(answer: HttpResponse, name: str) -> bool:
    return answer.headers.get(name, "").lower() == "true"


def stream_target(name: str, query: Mapping[str, str] | None = None) -> str:
    """The target of a stream's URL; `name` is as it is shown in listings."""
    return f"/v1/stream/{quoted_name(name)}" + (f"?{urlencode(query)}" if query else "")


def quoted_name(name: str) -> str:
    """A stream's name as part of a URL. '.' and '..' are quoted too, for the server to refuse: otherwise the HTTP library resolves them,
    and the request reaches another stream."""
    return "/".join(segment.replace(".", "%2E") if segment in (".", "..") else segment for segment in quote(name, safe="/").split("/"))
