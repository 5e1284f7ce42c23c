"""The attributes of a stream as operations: the methods that `blocking.Stream` and
`aio.AsyncStream` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from polynya.client.calls import call, decoded, header, stream_target
from polynya.client.messages import HttpRequest, HttpResponse, Operation
from polynya.client.streams import Subject
from polynya.client.values import JSON_TYPE, encode


class Attributes(msgspec.Struct, frozen=True):
    """The attributes of a stream, and the ETag that a change can name."""

    values: dict[str, Any]
    etag: str


def attributes(stream: Subject) -> Operation[Attributes]:
    """Return the stream's attributes. Raises `StreamNotFound`, `StreamGone`."""
    what = f"attributes of '{stream.name}'"

    def take(answer: HttpResponse) -> Attributes:
        values = decoded(answer, dict[str, Any], what, "the response is no JSON object")
        return Attributes(values, header(answer, "etag", what))

    request = HttpRequest("GET", _target(stream))
    return (yield from call(request, stream._retry, what, take, repeatable=True))


def set_attributes(
    stream: Subject,
    values: Mapping[str, Any],
    *,
    replace: bool = False,
    if_match: str | None = None,
) -> Operation[str]:
    """Set attributes, and return their ETag. None removes one, and others stay; with `replace` they
    go. `if_match`, an ETag, raises `ConditionFailed` unless the attributes are those."""
    method = "PUT" if replace else "PATCH"
    given = {name: value for name, value in values.items() if not replace or value is not None}
    headers = {"content-type": JSON_TYPE}
    if if_match is not None:
        headers["if-match"] = if_match
    what = f"set attributes of '{stream.name}'"
    return (
        yield from call(
            HttpRequest(method, _target(stream), headers, encode(given)),
            stream._retry,
            what,
            lambda answer: header(answer, "etag", what),
            repeatable=if_match is None,  # one that was applied finds another ETag
        )
    )


def _target(stream: Subject) -> str:
    return f"{stream_target(stream.name)}/attrs"
