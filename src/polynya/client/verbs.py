"""The basic stream operations as operations: create, append, head, close, delete, fork, list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from polynya.base.names import LEASED, PROFILES
from polynya.client import errors
from polynya.client.calls import call, decoded, header, is_true, stream_target
from polynya.client.messages import Deliver, HttpRequest, HttpResponse, Operation, Retry
from polynya.client.values import (
    JSON_TYPE,
    NOW,
    Appended,
    Created,
    Facts,
    Json,
    Leased,
    Profile,
    Trimming,
    encode,
    is_json,
    to_bytes,
)

NAMES_PER_PAGE = 1000
LOCAL = {"consistency": "local"}


class Lifetime(msgspec.Struct, frozen=True, kw_only=True):
    """The expiry and retention of a stream.

    It is deleted after `ttl_seconds` without use, or at `expires_at` (RFC 3339). Records are kept
    for `retain_seconds` and up to `retain_bytes`."""

    ttl_seconds: int | None = None
    expires_at: str | None = None
    retain_seconds: int | None = None
    retain_bytes: int | None = None

    def headers(self) -> dict[str, str]:
        values = {
            "stream-ttl": self.ttl_seconds,
            "stream-expires-at": self.expires_at,
            "stream-retention-age": self.retain_seconds,
            "stream-retention-bytes": self.retain_bytes,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def profile_headers(profile: Profile | Leased | None) -> dict[str, str]:
    """Return the headers of a `PUT` with this profile. Raises ValueError for an unknown one."""
    if profile is None:
        return {}
    if not isinstance(profile, Leased):
        if profile not in PROFILES:
            raise ValueError(f"profile must be {' or '.join(PROFILES)}, not {profile!r}")
        return {"stream-profile": profile}
    values = {
        "stream-profile": LEASED,
        "stream-segment-records": profile.records,
        "stream-segment-bytes": profile.bytes,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


class _Listing(msgspec.Struct):
    streams: list[Facts]
    next: str | None = None


def create(
    name: str,
    content_type: str,
    settings: Mapping[str, str],
    retry: Retry,
    *,
    closed: bool = False,
) -> Operation[Created]:
    """Create a stream. `settings`: the headers of its lifetime and its profile."""
    headers = {"content-type": content_type, **settings}
    if closed:
        headers["stream-closed"] = "true"
    return (yield from _put(f"create '{name}'", name, headers, retry))


def fork(
    name: str, source: str, offset: str | None, lifetime: Lifetime, retry: Retry
) -> Operation[Created]:
    """Create a fork of `source` at `offset`; None means its tail."""
    headers = {"stream-forked-from": stream_target(source), **lifetime.headers()}
    if offset is not None:
        headers["stream-fork-offset"] = offset
    return (yield from _put(f"fork '{source}' to '{name}'", name, headers, retry))


def _put(what: str, name: str, headers: dict[str, str], retry: Retry) -> Operation[Created]:

    def take(answer: HttpResponse) -> Created:
        return Created(
            created=answer.status == 201,
            offset=header(answer, "stream-next-offset", what),
            closed=is_true(answer, "stream-closed"),
            incarnation=answer.headers.get("stream-incarnation", ""),
        )

    return (
        yield from call(
            HttpRequest("PUT", stream_target(name), headers), retry, what, take, repeatable=True
        )
    )


def append(
    name: str,
    content_type: str,
    body: bytes,
    retry: Retry,
    *,
    sequence: str | None = None,
    close: bool = False,
    if_match: str | None = None,
) -> Operation[Appended]:
    """Append one body atomically. Retry only while certainly nothing was applied."""
    headers = {"content-type": content_type}
    if if_match is not None:
        headers["if-match"] = if_match if if_match.startswith('"') else f'"{if_match}"'
    if sequence is not None:
        headers["stream-seq"] = sequence
    if close:
        headers["stream-closed"] = "true"
    what = f"append to '{name}'"
    return (
        yield from call(
            HttpRequest("POST", stream_target(name), headers, body),
            retry,
            what,
            appended,
            repeatable=False,
        )
    )


def appended(answer: HttpResponse) -> Appended:
    """Parse the response to an append. Raises `AnswerDamaged`."""
    return Appended(
        offset=header(answer, "stream-next-offset", "append"),
        closed=is_true(answer, "stream-closed"),
        incarnation=answer.headers.get("stream-incarnation", ""),
    )


def body_of(values: Sequence[Json], content_type: str) -> bytes:
    """Return the body of one append of one or more records. Raises TypeError, ValueError."""
    if not values:
        raise ValueError("an append needs at least one record")
    if is_json(content_type):
        return b"[" + b",".join([encode(value) for value in values]) + b"]"
    body = b"".join([to_bytes(value) for value in values])
    if not body:
        raise ValueError("an append needs at least one byte")
    return body


def close(name: str, retry: Retry) -> Operation[Appended]:
    what = f"close '{name}'"
    request = HttpRequest("POST", stream_target(name), {"stream-closed": "true"})
    return (yield from call(request, retry, what, appended, repeatable=True))


def delete(name: str, retry: Retry, *, missing_ok: bool = False) -> Operation[bool]:
    """Delete a stream; return False if it was missing. A retry after a lost response that finds
    nothing counts as the deletion."""
    what = f"delete '{name}'"
    try:
        yield from call(
            HttpRequest("DELETE", stream_target(name)), retry, what, lambda _: None, repeatable=True
        )
    except (errors.StreamNotFound, errors.StreamGone) as error:
        if error.outcome is errors.Outcome.UNKNOWN:
            return True
        if missing_ok:
            return False
        raise
    return True


def trim(name: str, body: dict[str, str | int], retry: Retry) -> Operation[Trimming]:
    """Delete the oldest records. `body` holds one of `before`, `before_time`, `keep_bytes`,
    `keep_age_seconds`."""
    what = f"trim '{name}'"
    request = HttpRequest(
        "POST",
        f"{stream_target(name)}/retention",
        {"content-type": JSON_TYPE},
        msgspec.json.encode(body),
    )
    return (yield from call(request, retry, what, _trimmed, repeatable=True))


def set_retention(name: str, body: dict[str, int | bool | None], retry: Retry) -> Operation[None]:
    """Set the retention of a stream."""
    what = f"set the retention of '{name}'"
    request = HttpRequest(
        "PUT",
        f"{stream_target(name)}/retention",
        {"content-type": JSON_TYPE},
        msgspec.json.encode(body),
    )
    yield from call(request, retry, what, lambda answer: None, repeatable=True)


def trim_body(**choices: str | int | None) -> dict[str, str | int]:
    """Return the body of a trim. Raises ValueError unless exactly one choice is given."""
    given = {name: value for name, value in choices.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"a trim needs exactly one of {', '.join(choices)}")
    return given


def _trimmed(answer: HttpResponse) -> Trimming:
    return decoded(answer, Trimming, "trim", "the response does not report what was trimmed")


def head(name: str, retry: Retry, *, local: bool = False) -> Operation[Facts]:
    what = f"head of '{name}'"

    def take(answer: HttpResponse) -> Facts:
        headers = answer.headers
        ttl = headers.get("stream-ttl", "")
        return Facts(
            name=name,
            content_type=headers.get("content-type", ""),
            offset=header(answer, "stream-next-offset", what),
            closed=is_true(answer, "stream-closed"),
            incarnation=headers.get("stream-incarnation", ""),
            ttl_seconds=int(ttl) if ttl.isdecimal() else None,
            expires_at=headers.get("stream-expires-at"),
            retained_offset=headers.get("stream-retained-offset"),
            profile=headers.get("stream-profile"),
        )

    request = HttpRequest("HEAD", stream_target(name, LOCAL if local else None))
    try:
        return (yield from call(request, retry, what, take, repeatable=True))
    except errors.Refused as error:
        if error.code:
            raise
        # a response to HEAD has no body: the same refusal of GET says the reason
        asked = HttpRequest("GET", stream_target(name, {"offset": NOW}))
        yield from call(asked, retry, what, lambda _: None, repeatable=True)
        raise


def exists(name: str, retry: Retry) -> Operation[bool]:
    try:
        yield from head(name, retry)
    except (errors.StreamNotFound, errors.StreamGone):
        return False
    return True


def listing(prefix: str, retry: Retry, *, local: bool = False) -> Operation[None]:
    """Yield the `Facts` of each stream whose name starts with `prefix`, sorted by name."""
    after = ""
    while True:
        query = urlencode(
            {"prefix": prefix, "after": after, "limit": NAMES_PER_PAGE} | (LOCAL if local else {})
        )
        page = yield from call(
            HttpRequest("GET", f"/v1/streams?{query}"),
            retry,
            f"list '{prefix}'",
            _rows,
            repeatable=True,
        )
        for facts in page.streams:
            yield Deliver(facts)
        if not page.next:
            return
        after = page.next


def _rows(answer: HttpResponse) -> _Listing:
    return decoded(answer, _Listing, "list", "the response is not a list of streams")
