"""Reducers as operations: the state of a stream, and the methods of clients that bind reducers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from polynya.client import errors
from polynya.client.calls import call, decoded, header, stream_target
from polynya.client.messages import HttpRequest, HttpResponse, Operation, Retry
from polynya.client.streams import Subject
from polynya.client.values import JSON_TYPE, is_json

PATH = "/v1/reducers"


class ReducerFault(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a reducer cannot go on with a stream, and when it is tried again."""

    stream: str
    reason: str
    since: str
    retry_at: str
    tries: int


class ReducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A reducer: the pattern of its streams, and a `builtin` or the SHA-256 of a `module`. One that is
    `stopped` has the reason there."""

    name: str
    pattern: str
    revision: int
    builtin: str = ""
    module: str = ""
    key: str = ""
    every_records: int
    every_bytes: int
    every_seconds: int
    retain: bool = False
    stopped: str = ""
    faults: list[ReducerFault] = []


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of a request that sets a reducer."""

    pattern: str
    builtin: str = ""
    module: str = ""
    key: str = ""
    every_records: int | None = None
    every_bytes: int | None = None
    every_seconds: int | None = None
    retain: bool = False


class _Listed(msgspec.Struct, frozen=True):
    reducers: list[ReducerInfo]


def state(stream: Subject, *, key: str | None = None, reducer: str | None = None) -> Operation[Any]:
    """Return the state of the stream's reducer after all records so far: JSON decoded, else bytes.

    `key`: of that key alone, of the builtin `latest` as a dict with `key`, `record` and `value`; None
    if there is none. `reducer`: the reducer, if the stream has several."""
    what = f"state of '{stream.name}'"
    params = {"key": key, "reducer": reducer}
    query = urlencode({name: value for name, value in params.items() if value is not None})
    target = f"{stream_target(stream.name)}/state" + (f"?{query}" if query else "")
    try:
        return (
            yield from call(
                HttpRequest("GET", target),
                stream._retry,
                what,
                lambda answer: _decoded(answer, what),
                repeatable=True,
            )
        )
    except errors.ClientError as error:
        if error.code == "KEY_NOT_FOUND":
            return None
        raise


def _decoded(answer: HttpResponse, what: str) -> Any:
    if not is_json(header(answer, "content-type", what)):
        return answer.body
    return decoded(answer, Any, what, "the response is no JSON")


def listing(retry: Retry) -> Operation[list[ReducerInfo]]:
    """Return the reducers."""
    what = f"GET {PATH}"

    def take(answer: HttpResponse) -> list[ReducerInfo]:
        return decoded(answer, _Listed, what).reducers

    return (yield from call(HttpRequest("GET", PATH), retry, what, take, repeatable=True))


def put(name: str, wanted: Wanted, retry: Retry) -> Operation[ReducerInfo]:
    """Set a reducer, and return it."""
    fields = {
        field: value for field, value in msgspec.to_builtins(wanted).items() if value is not None
    }
    request = HttpRequest(
        "PUT", _target(name), {"content-type": JSON_TYPE}, msgspec.json.encode(fields)
    )
    what = f"set the reducer '{name}'"

    def take(answer: HttpResponse) -> ReducerInfo:
        return decoded(answer, ReducerInfo, what)

    return (yield from call(request, retry, what, take, repeatable=True))


def remove(name: str, retry: Retry) -> Operation[bool]:
    """Remove a reducer; return False if there is none."""
    what = f"remove the reducer '{name}'"
    request = HttpRequest("DELETE", _target(name))
    try:
        yield from call(request, retry, what, lambda _: None, repeatable=True)
    except errors.ClientError as error:
        if error.code == "NO_REDUCER":
            return False
        raise
    return True


def _target(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"
