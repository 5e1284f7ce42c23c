"""Operations on one stream: the methods that `blocking.Stream` and `aio.AsyncStream` share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import update_wrapper
from typing import Any, get_args

from polynya.base.limits import PRODUCER_NUMBER_MAX
from polynya.client import verbs
from polynya.client.messages import Operation, Retry
from polynya.client.producing import Names
from polynya.client.reading import ReadPosition
from polynya.client.records import RECORDS_TYPE, NewRecord, records_body
from polynya.client.values import (
    JSON_TYPE,
    Appended,
    Consistency,
    Created,
    Facts,
    Json,
    Leased,
    Profile,
    Trimming,
    is_json,
    is_local,
    time_text,
)
from polynya.client.verbs import Lifetime


class Subject:
    """The stream that an operation works on."""

    def __init__(self, name: str, content_type: str | None, retry: Retry) -> None:
        self._retry = retry
        self.name = name
        self.content_type = content_type


def create(  # noqa: PLR0913  (one option each)
    stream: Subject,
    *,
    content_type: str = "",
    ttl_seconds: int | None = None,
    expires_at: str | None = None,
    retain_seconds: int | None = None,
    retain_bytes: int | None = None,
    closed: bool = False,
    profile: Profile | Leased | None = None,
) -> Operation[Created]:
    """Create the stream, as JSON by default. A stream with the same settings is not an error.
    Raises `StreamExists`.

    The stream is deleted after `ttl_seconds` without use, or at `expires_at` (RFC 3339). Its
    records are kept for `retain_seconds`, and while newer ones are below `retain_bytes`.

    A stream with the profile "leased" is a chain of segments with one writer each; `Leased` also
    limits its segments."""
    wanted = content_type or stream.content_type or JSON_TYPE
    lifetime = Lifetime(
        ttl_seconds=ttl_seconds,
        expires_at=expires_at,
        retain_seconds=retain_seconds,
        retain_bytes=retain_bytes,
    )
    settings = lifetime.headers() | verbs.profile_headers(profile)
    made = yield from verbs.create(stream.name, wanted, settings, stream._retry, closed=closed)
    stream.content_type = wanted
    return made


def append(
    stream: Subject,
    *records: Json,
    sequence: str | None = None,
    close: bool = False,
    if_match: str | None = None,
) -> Operation[Appended]:
    """Append one or more records atomically, and wait until they are durable.

    A JSON stream takes values; other streams take bytes or text. A `NewRecord` has a key, headers
    or a time besides its value. `sequence` must compare greater,
    as text, than that of the previous append. `close` closes the stream in the same request.
    `if_match`, an offset, makes it a compare-and-swap: it raises `ConditionFailed` unless that is
    the tail.

    Raises `Refused` or `Unavailable` when nothing was applied, and `OutcomeUnknown` when a response
    was lost. A `producer()` retries safely."""
    content_type = yield from known_type(stream)
    if any(isinstance(each, NewRecord) for each in records):
        body, content_type = records_body(records, content_type), RECORDS_TYPE
    else:
        body = verbs.body_of(records, content_type)
    return (
        yield from verbs.append(
            stream.name,
            content_type,
            body,
            stream._retry,
            sequence=sequence,
            close=close,
            if_match=if_match,
        )
    )


def trim(
    stream: Subject,
    *,
    before: str | None = None,
    before_time: str | datetime | None = None,
    keep_bytes: int | None = None,
    keep_seconds: int | None = None,
) -> Operation[Trimming]:
    """Delete the oldest records: those before an offset or a time, or all but the newest
    `keep_bytes` or `keep_seconds`. Pass exactly one."""
    time = None if before_time is None else time_text(before_time)
    body = verbs.trim_body(
        before=before, before_time=time, keep_bytes=keep_bytes, keep_age_seconds=keep_seconds
    )
    return (yield from verbs.trim(stream.name, body, stream._retry))


def set_retention(
    stream: Subject,
    *,
    keep_seconds: int | None = None,
    keep_bytes: int | None = None,
    record_time: bool = False,
    compact: bool = False,
) -> Operation[None]:
    """Keep the records of the last `keep_seconds`, and at most the newest `keep_bytes`; without a
    limit all. With `record_time` the age goes by record times. With `compact` only the newest
    record of each key is kept, as far as records are in the object store."""
    body = {
        "age_seconds": keep_seconds,
        "bytes": keep_bytes,
        "record_time": record_time,
        "compact": compact,
    }
    yield from verbs.set_retention(stream.name, body, stream._retry)


def head(stream: Subject, *, consistency: Consistency = "leader") -> Operation[Facts]:
    """Return the stream's properties and tail. Raises `StreamNotFound`, `StreamGone`.

    `consistency="leader"` includes every acknowledged append; "local" accepts the possibly stale
    copy of the contacted node."""
    facts = yield from verbs.head(stream.name, stream._retry, local=is_local(consistency))
    stream.content_type = facts.content_type
    return facts


def known_type(stream: Subject) -> Operation[str]:
    """Return the content type, fetched from the server once."""
    if stream.content_type is None:
        yield from head(stream)
    assert stream.content_type is not None
    return stream.content_type


def exists(stream: Subject) -> Operation[bool]:
    """Return True if the stream exists, open or closed."""
    return verbs.exists(stream.name, stream._retry)


def close(stream: Subject) -> Operation[Appended]:
    """Close the stream: it accepts no more appends, and readers reach its end."""
    return verbs.close(stream.name, stream._retry)


def delete(stream: Subject, *, missing_ok: bool = False) -> Operation[bool]:
    """Delete the stream. Return False if it did not exist and `missing_ok` is set."""
    return verbs.delete(stream.name, stream._retry, missing_ok=missing_ok)


def fork(stream: Subject, name: str, offset: str | None, lifetime: Lifetime) -> Operation[Created]:
    return verbs.fork(name, stream.name, offset, lifetime, stream._retry)


def producer_names(
    stream: Subject, producer_id: str, epoch: int | None, drawn_id: str
) -> Operation[Names]:
    """Return the identity of a producer of the stream; `drawn_id` if the user gave none. Raises
    ValueError."""
    if epoch is not None and not 0 <= epoch <= PRODUCER_NUMBER_MAX:
        raise ValueError(f"epoch must be between 0 and {PRODUCER_NUMBER_MAX}, not {epoch}")
    content_type = yield from known_type(stream)
    if producer_id:
        return Names(
            stream=stream.name,
            content_type=content_type,
            producer_id=producer_id,
            epoch=epoch,
            fresh=False,
        )
    return Names(
        stream=stream.name,
        content_type=content_type,
        producer_id=drawn_id,
        epoch=epoch or 0,
        fresh=True,
    )


def begin_of(
    from_time: str | datetime,
    from_record_time: str | datetime,
    record: int | None,
    tail_records: int | None,
) -> dict[str, str]:
    """Return the parameter that says where a reader begins; none: its offset does. Raises
    ValueError."""
    begin = {
        "from_time": time_text(from_time),
        "from_record_time": time_text(from_record_time),
        "record": _at_least(0, "record", record),
        "tail_records": _at_least(1, "tail_records", tail_records),
    }
    given = {name: text for name, text in begin.items() if text}
    if len(given) > 1:
        raise ValueError(f"pass {' or '.join(given)}, not both")
    return given


def _at_least(least: int, name: str, number: int | None) -> str:
    if number is None:
        return ""
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return str(number)


def position(
    stream: Subject,
    offset: str,
    begin: Mapping[str, str],
    max_bytes: int | None = None,
    *,
    max_records: int | None = None,
    consistency: Consistency = "leader",
    whole: bool = False,
) -> ReadPosition:
    """Return the start position of a reader. Raises ValueError."""
    _at_least(1, "max_records", max_records)
    return ReadPosition(
        stream.name,
        offset,
        max_bytes,
        begin=begin,
        max_records=max_records,
        local=is_local(consistency),
        whole=whole,
    )


def pages(stream: Subject, position: ReadPosition, operation: Operation[None]) -> Operation[None]:
    """Run the operation of a reader. One of whole records learns first what their values are."""
    if position.whole:
        position.json_values = is_json((yield from known_type(stream)))
    yield from operation


def describe(method: Callable[..., Any], operation: Callable[..., Operation[Any]]) -> None:
    """Give a method the docstring, arguments and result type of the operation that it runs."""
    update_wrapper(method, operation)
    signature = inspect.signature(operation, eval_str=True)
    result = get_args(signature.return_annotation)[-1]
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
