"""Appends to many streams in one request, as an operation."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from polynya.base.limits import APPENDS_PER_REQUEST_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.client import errors
from polynya.client.calls import call
from polynya.client.messages import HttpRequest, HttpResponse, Operation, Retry
from polynya.client.values import Json, encode, to_bytes

APPENDS_AT_ONCE_MAX = 64
OutcomeT = TypeVar("OutcomeT")
_LINES = "application/x-ndjson"


class StreamAppend(msgspec.Struct, frozen=True, kw_only=True):
    """One append of `append_many`: JSON `records`, or `data` as one record of a stream of another
    content type, or neither with `close`.

    `producer` is an id, an epoch and a sequence number: a repeat is not stored again. `if_match`,
    an offset, refuses the append unless the stream ends there."""

    stream: str
    records: Sequence[Json] = ()
    data: bytes | str | None = None
    content_type: str = ""
    producer: tuple[str, int, int] | None = None
    if_match: str | None = None
    close: bool = False


class AppendOutcome(msgspec.Struct, frozen=True):
    """The outcome of one append: `status` is that of the same append alone. A refused one has a
    `code` and a `message`, and `retry_after` in seconds if a retry can help. `unknown`: it may have
    been applied."""

    status: int
    next_offset: str = ""
    incarnation: str = ""
    closed: bool = False
    code: str = ""
    message: str = ""
    retry_after: int | None = None
    unknown: bool = False

    @property
    def ok(self) -> bool:
        """True if the records are durable."""
        return not self.code


def append_many(appends: Sequence[StreamAppend], retry: Retry) -> Operation[list[AppendOutcome]]:
    """Append to many streams, and return the outcome of each append in their order. The request is
    repeated after a lost answer if each append has a producer. Raises ValueError for none, or for
    more than 1,000."""
    if not 0 < len(appends) <= APPENDS_PER_REQUEST_MAX:
        raise ValueError(
            f"append_many takes 1 to {APPENDS_PER_REQUEST_MAX} appends, not {len(appends)}: call it "
            "for each part"
        )
    body = b"\n".join(_line(each) for each in appends)
    what = f"append to {len(appends)} streams"

    def take(answer: HttpResponse) -> list[AppendOutcome]:
        return _outcomes(answer, what, list[AppendOutcome], len(appends))

    request = HttpRequest("POST", "/v1/append", {"content-type": _LINES}, body)
    repeatable = all(each.producer is not None for each in appends)
    return (yield from call(request, retry, what, take, repeatable=repeatable))


def append_all(appends: Sequence[StreamAppend], retry: Retry) -> Operation[list[AppendOutcome]]:
    """Append to several streams, all or nothing, and return the outcome of each in their order. One
    that has only `if_match` is a condition. The request is repeated after a lost answer if one of
    the appends has a producer. Raises ValueError for none, or for more than 64."""
    if not 0 < len(appends) <= APPENDS_AT_ONCE_MAX:
        raise ValueError(f"append_all takes 1 to {APPENDS_AT_ONCE_MAX} appends, not {len(appends)}")
    body = b"\n".join(_line(each) for each in appends)
    what = f"append to {len(appends)} streams at once"

    def take(answer: HttpResponse) -> list[AppendOutcome]:
        found = _outcomes(answer, what, list[_Applied], len(appends))
        return [
            AppendOutcome(200, each.next_offset, each.incarnation, each.closed) for each in found
        ]

    request = HttpRequest("POST", "/v1/append-all", {"content-type": _LINES}, body)
    repeatable = any(each.producer is not None for each in appends)
    return (yield from call(request, retry, what, take, repeatable=repeatable))


class _Applied(msgspec.Struct):
    next_offset: str
    incarnation: str
    closed: bool = False


def _outcomes(
    answer: HttpResponse, what: str, kind: type[list[OutcomeT]], count: int
) -> list[OutcomeT]:
    """Return the outcomes of a response. Raises AnswerDamaged for another number of them."""
    try:
        found = msgspec.json.decode(answer.body, type=kind)
    except UNREADABLE:
        found = []
    if len(found) != count:
        raise errors.AnswerDamaged(
            f"{what}: the response has not {count} outcomes", status=answer.status
        )
    return found


def _line(append: StreamAppend) -> bytes:
    line: dict[str, Any] = {"stream": append.stream}
    if append.records:
        if append.data is not None:
            raise ValueError(f"the append to '{append.stream}' has both records and data")
        values = b",".join(encode(record) for record in append.records)
        line["records"] = msgspec.Raw(b"[" + values.replace(b"\n", b" ") + b"]")
    elif append.data is not None:
        line["base64"] = b64encode(to_bytes(append.data)).decode()
    if append.content_type:
        line["content_type"] = append.content_type
    if append.producer is not None:
        line["producer"] = append.producer
    if append.if_match is not None:
        line["if_match"] = append.if_match
    if append.close:
        line["close"] = True
    return msgspec.json.encode(line)
