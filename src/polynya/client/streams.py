"""What can be asked of one stream, as talks: the verbs of `blocking.Stream` and of `aio.AsyncStream`, said once for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import update_wrapper
from typing import Any, get_args

from polynya.base.limits import PRODUCER_NUMBER_MAX
from polynya.client import verbs
from polynya.client.messages import Retry, Talk
from polynya.client.producing import Names
from polynya.client.reading import ReadPosition
from polynya.client.values import JSON_TYPE, Appended, Consistency, Created, Facts, Json, Trimming, is_local, time_text
from polynya.client.verbs import Lifetime


class Subject:
    """The stream of a talk."""

    def __init__(self, name: str, content_type: str | None, retry: Retry) -> None:
        self._retry = retry
        self.name = name
        self.content_type = content_type


def create(
    stream: Subject,
    *,
    content_type: str = "",
    ttl_seconds: int | None = None,
    expires_at: str | None = None,
    retain_seconds: int | None = None,
    retain_bytes: int | None = None,
    closed: bool = False,
) -> Talk[Created]:
    """Create it, as JSON unless said otherwise; one that exists with the same settings is fine. Raises `StreamExists`.

    It goes when nobody used it for `ttl_seconds`, or at `expires_at` (RFC 3339). Its records stay for `retain_seconds`, and as long as
    `retain_bytes` of newer ones do not push them out."""
    wanted = content_type or stream.content_type or JSON_TYPE
    lifetime = Lifetime(ttl_seconds=ttl_seconds, expires_at=expires_at, retain_seconds=retain_seconds, retain_bytes=retain_bytes)
    made = yield from verbs.create(stream.name, wanted, lifetime, stream._retry, closed=closed)
    stream.content_type = wanted
    return made


def append(stream: Subject, *records: Json, sequence: str | None = None, close: bool = False) -> Talk[Appended]:
    """Append one or more records, all or none, and wait until they are durable. Into a JSON stream go values; into others bytes or
    text. `sequence` must be greater, as text, than that of the append before. `close` closes the stream with it.

    Raises `Refused` and `Unavailable` when nothing was applied, `OutcomeUnknown` when an answer was lost: a `producer()` repeats
    safely."""
    content_type = yield from known_type(stream)
    body = verbs.body_of(records, content_type)
    return (yield from verbs.append(stream.name, content_type, body, stream._retry, sequence=sequence, close=close))


def trim(
    stream: Subject,
    *,
    before: str | None = None,
    before_time: str | datetime | None = None,
    keep_bytes: int | None = None,
    keep_seconds: int | None = None,
) -> Talk[Trimming]:
    """Let go of the oldest records: those before an offset or a time, or all but so much. Say exactly one."""
    time = None if before_time is None else time_text(before_time)
    body = verbs.trim_body(before=before, before_time=time, keep_bytes=keep_bytes, keep_age_seconds=keep_seconds)
    return (yield from verbs.trim(stream.name, body, stream._retry))


def head(stream: Subject, *, consistency: Consistency = "leader") -> Talk[Facts]:
    """What is known of it: by all that was acknowledged, or ("local") by what the asked node has. Raises `StreamNotFound`, `StreamGone`."""
    facts = yield from verbs.head(stream.name, stream._retry, local=is_local(consistency))
    stream.content_type = facts.content_type
    return facts


def known_type(stream: Subject) -> Talk[str]:
    """The content type, which is asked of the server once."""
    if stream.content_type is None:
        yield from head(stream)
    assert stream.content_type is not None
    return stream.content_type


def exists(stream: Subject) -> Talk[bool]:
    """Whether there is one of this name, closed or not."""
    return verbs.exists(stream.name, stream._retry)


def close(stream: Subject) -> Talk[Appended]:
    """Nothing can be appended any more; readers are told the end."""
    return verbs.close(stream.name, stream._retry)


def delete(stream: Subject, *, missing_ok: bool = False) -> Talk[bool]:
    """Whether there was one to delete."""
    return verbs.delete(stream.name, stream._retry, missing_ok=missing_ok)


def fork(stream: Subject, name: str, offset: str | None, lifetime: Lifetime) -> Talk[Created]:
    return verbs.fork(name, stream.name, offset, lifetime, stream._retry)


def producer_names(stream: Subject, producer_id: str, epoch: int | None, drawn_id: str) -> Talk[Names]:
    """Who writes as a producer of the stream; `drawn_id` when the user named none. Raises ValueError."""
    if epoch is not None and not 0 <= epoch <= PRODUCER_NUMBER_MAX:
        raise ValueError(f"epoch must be between 0 and {PRODUCER_NUMBER_MAX}, not {epoch}")
    content_type = yield from known_type(stream)
    if producer_id:
        return Names(stream=stream.name, content_type=content_type, producer_id=producer_id, epoch=epoch, fresh=False)
    return Names(stream=stream.name, content_type=content_type, producer_id=drawn_id, epoch=epoch or 0, fresh=True)


def place(
    stream: Subject, offset: str, from_time: str | datetime, max_bytes: int | None = None, *, consistency: Consistency = "leader"
) -> ReadPosition:
    """Where a reader of the stream begins."""
    return ReadPosition(stream.name, offset, max_bytes, from_time=time_text(from_time), local=is_local(consistency))


def describe(method: Callable[..., Any], talk: Callable[..., Talk[Any]]) -> None:
    """Let a method that carries out a talk show the talk's words and arguments, and what the talk returns."""
    update_wrapper(method, talk)
    signature = inspect.signature(talk, eval_str=True)
    result = get_args(signature.return_annotation)[-1]
    method.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
