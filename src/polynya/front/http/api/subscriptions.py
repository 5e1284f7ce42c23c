"""Routes of subscriptions: the mount `/v1/stream/__ds/`."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import (
    SUBSCRIPTION_ATTEMPTS_MAX,
    SUBSCRIPTION_BODY_BYTES_MAX,
    SUBSCRIPTION_ID_BYTES_MAX,
    SUBSCRIPTION_LANES_MAX,
    SUBSCRIPTION_PAUSE_MS_MAX,
    SUBSCRIPTION_ROWS_MAX,
    SUBSCRIPTION_STREAMS_MAX,
    SUBSCRIPTION_TEXT_BYTES_MAX,
    SUBSCRIPTION_WORKER_BYTES_MAX,
)
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import BadName, canonical_name, canonical_prefix, spelled_name
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.extension import NO_STORE, Request, Response
from polynya.stream.features.subscriptions.commands import SubscriptionConfig
from polynya.stream.features.subscriptions.globs import BadPattern, check_pattern, compile_pattern
from polynya.stream.features.subscriptions.rules import PULL_WAKE, WEBHOOK
from polynya.subscriptions import Subscriptions
from polynya.subscriptions.messages import (
    AnyOperation,
    ClaimWork,
    DeleteSubscription,
    Get,
    Members,
    OperationResult,
    Put,
    Reset,
    RetryWork,
    ShareLanes,
    Work,
    refuse,
)
from polynya.wire.headers import BadField
from polynya.wire.json_records import valid_value
from polynya.wire.times import parse_time_ms

PREFIXES = ("/v1/stream/__ds/", "/v1/streams/__ds/")
LEASE_MS = 30_000
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 600_000
LISTED = 100  # default page size of the list
LISTED_MAX = 1000
_ENCODER = msgspec.json.Encoder()


class _Webhook(msgspec.Struct):
    url: str


class _PutBody(msgspec.Struct):
    type: str
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: _Webhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = LEASE_MS
    description: str | None = None
    max_attempts: int | None = None  # this and the next are not in the protocol
    dead_letter_stream: str | None = None


class _StreamsBody(msgspec.Struct):
    streams: list[str]


class _ClaimBody(msgspec.Struct):
    worker: str
    claim_id: str = ""  # not in the protocol


class _WorkersBody(msgspec.Struct, forbid_unknown_fields=True):
    """A worker's report. It is not in the protocol."""

    worker: str
    lanes: int = 1
    busy: list[int] = []
    leave: bool = False


class _Ack(msgspec.Struct):
    offset: str
    stream: str | None = None
    path: str | None = None


class _WakeBody(msgspec.Struct):
    wake_id: str | None = None
    # the range that the log can store
    generation: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    acks: list[_Ack] | None = None


class _WorkBody(_WakeBody):
    done: bool | None = None


class _RetryBody(_WakeBody, kw_only=True):
    """The report of a record that could not be handled. It is not in the protocol."""

    stream: str
    offset: str
    after_ms: int | None = None
    error: str = ""
    record: msgspec.Raw = msgspec.Raw(b"")


class _ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A reset of cursors. It is not in the protocol."""

    to: str
    streams: list[str] = []
    force: bool = False
    dry_run: bool = False


class _Refused(Exception):
    """An error that carries its response."""

    def __init__(self, answer: OperationResult) -> None:
        super().__init__()
        self.answer = answer


class SubscriptionRoutes:
    """The handler of subscription requests, mounted at each of `PREFIXES`."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    async def handle(self, request: Request) -> Response:
        try:
            if request.segments == ("jwks.json",):
                return await self._jwks(request)
            listed = request.segments in (("subscriptions",), ("subscriptions", ""))
            answer = await (self._list(request) if listed else self._operate(request))
        except _Refused as refused:
            answer = refused.answer
        if answer.status == 405:
            allowed = (("Allow", answer.value["error"]["allow"]),) if answer.value else ()
            return Response(
                405,
                _ENCODER.encode(answer.value),
                headers=(*allowed, ("Cache-Control", "no-store")),
            )
        body = b"" if answer.value is None else _ENCODER.encode(answer.value)
        return Response(answer.status, body, headers=NO_STORE)

    async def _operate(self, request: Request) -> OperationResult:
        operation = _operation(request, self._subscriptions.now_ms())
        # a request of a worker authenticates with the token of its wake
        if request.principal is not None and not isinstance(operation, Work | RetryWork):
            await self._check(request.principal, operation)
        return await self._subscriptions.operate(operation)

    async def _list(self, request: Request) -> OperationResult:
        """List all subscriptions by id, in pages; with `groups` by name, where the lanes of a group
        are one row. This is an extension of the protocol."""
        if request.method not in ("GET", "HEAD"):
            raise _Refused(_not_allowed("GET"))
        if request.principal is not None and not request.principal.may(Verb.SUBSCRIBE, ""):
            raise _forbidden(
                "'subscribe' on all streams, which the list of all subscriptions needs"
            )
        window = request.query.get("prefix", ""), request.query.get("after", "")
        limit, groups = _limit(request) or LISTED, request.query.get("groups", "false")
        if groups not in ("true", "false"):
            raise _invalid(f"groups is '{groups[:64]}'; expected true or false")
        if groups == "true":
            rows_max = min(limit, SUBSCRIPTION_ROWS_MAX)
            return await self._subscriptions.listed_by_name(*window, rows_max)
        return await self._subscriptions.listed(*window, min(limit, LISTED_MAX))

    async def _check(self, principal: Principal, operation: AnyOperation) -> None:
        """Check that the caller may watch every present and new stream of the subscription. Raises
        `_Refused`."""
        if principal.may(Verb.SUBSCRIBE, "") and not isinstance(operation, Put):
            return
        if isinstance(operation, Put):
            config = operation.config
            watched = [*_stem(config.pattern), *config.streams]
            if config.wake_stream and not principal.may(Verb.APPEND, config.wake_stream):
                raise _forbidden(
                    f"'append' on the wake_stream '{spelled_name(config.wake_stream)}'"
                )
            letters = operation.dead_letter
            if letters and not principal.may(Verb.APPEND, letters):
                raise _forbidden(f"'append' on the dead_letter_stream '{spelled_name(letters)}'")
        else:
            watched = [
                *(operation.add if isinstance(operation, Members) else ()),
                *await self._watched(operation.id),
            ]
        for name in watched:
            if not principal.may(Verb.SUBSCRIBE, name):
                raise _forbidden(
                    "'subscribe' on every stream that the subscription watches, such as "
                    f"'{spelled_name(name)}'"
                )

    async def _watched(self, key: str) -> list[str]:
        """Return names and name prefixes that a subscription watches; empty for a missing
        subscription."""
        found: list[str] = []
        after = ""
        while True:
            shown = await self._subscriptions.operate(Get(key, "", after))
            if shown.status != 200 or shown.value is None:
                return found
            if not after:
                found += _stem(shown.value["pattern"] or "")
            found += [
                canonical_name(link["path"])
                for link in shown.value["streams"]
                if link["link_type"] == "explicit"
            ]
            after = shown.value.get("streams_after", "") if shown.value["explicit_streams"] else ""
            if not after:
                return found

    async def _jwks(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise _Refused(_not_allowed("GET"))
        body = _ENCODER.encode(await self._subscriptions.jwks())
        return Response(
            200, body, "application/jwk-set+json", (("Cache-Control", "public, max-age=300"),)
        )


def _stem(pattern: str) -> list[str]:
    """Return the prefix of all names that a pattern can match, as a list of one; empty without a
    pattern."""
    if not pattern:
        return []
    segments = pattern.split("/")
    fixed = list(takewhile(lambda segment: segment not in ("*", "**"), segments))
    text = "/".join(fixed).replace("%2a", "*").replace("%2A", "*")
    return [
        canonical_name(text)
        if len(fixed) == len(segments)
        else canonical_prefix(f"{text}/" if fixed else "")
    ]


def _forbidden(what: str) -> _Refused:
    return _Refused(refuse(403, "FORBIDDEN", f"the token does not allow {what}"))


def _operation(request: Request, now_ms: int) -> AnyOperation:
    """Parse the request into an operation. Raises `_Refused`."""
    segments = request.segments
    if len(segments) < 2 or segments[0] != "subscriptions" or not segments[1]:
        raise _Refused(
            refuse(
                404,
                "SUBSCRIPTION_NOT_FOUND",
                "no route matches this path; subscriptions are at __ds/subscriptions/ID",
            )
        )
    key = segments[1]
    if len(key.encode()) > SUBSCRIPTION_ID_BYTES_MAX or not key.isprintable():
        raise _invalid(
            f"a subscription's id has at most {SUBSCRIPTION_ID_BYTES_MAX} bytes, all printable"
        )
    if len(request.body) > SUBSCRIPTION_BODY_BYTES_MAX:
        raise _Refused(
            refuse(
                413, "BODY_TOO_LARGE", f"the body has at most {SUBSCRIPTION_BODY_BYTES_MAX} bytes"
            )
        )
    rest = segments[2:]
    if not rest:
        return _base(request, key)
    if rest[0] == "streams":
        return _members(request, key, rest[1:])
    if rest == ("workers",):
        _only(request, "POST")
        return _share_lanes(request, key)
    if rest == ("reset",):
        _only(request, "POST")
        return _reset(request, key, now_ms)
    if len(rest) == 1 and rest[0] in ("callback", "claim", "ack", "release", "retry"):
        _only(request, "POST")
        if rest[0] == "retry":
            return _retry(request, key)
        return _claim(request, key) if rest[0] == "claim" else _work(request, key, rest[0])
    raise _Refused(
        refuse(
            404,
            "SUBSCRIPTION_NOT_FOUND",
            "the paths below a subscription are streams, callback, claim, ack, retry, release, "
            "reset and workers",
        )
    )


def _base(request: Request, key: str) -> AnyOperation:
    if request.method == "PUT":
        body = _read(request, _PutBody)
        config = _config(body)
        return Put(key, request.base_url, config, *_limit_of_attempts(body, config))
    if request.method in ("GET", "HEAD"):
        return Get(key, request.base_url, request.query.get("after", ""), _limit(request))
    _only(request, "DELETE", "GET, PUT, DELETE")
    return DeleteSubscription(key, request.base_url)


def _limit(request: Request) -> int:
    """Return the parameter `limit`; 0 if absent. Raises `_Refused`."""
    limit = request.query.get("limit", "0")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
        raise _invalid("limit must be a whole number")
    return int(limit)


def _members(request: Request, key: str, path: tuple[str, ...]) -> AnyOperation:
    """Return the operation that adds (POST) or removes (DELETE) links. `path` may be one segment
    with encoded slashes or several: %2F separates in subscription parameters."""
    if path:
        _only(request, "DELETE")
        return Members(key, request.base_url, [], [_name("/".join(path))])
    _only(request, "POST")
    return Members(key, request.base_url, _names(_read(request, _StreamsBody).streams), [])


def _claim(request: Request, key: str) -> AnyOperation:
    body = _read(request, _ClaimBody)
    worker, claim_id = body.worker, body.claim_id
    if not worker or len(worker.encode()) > SUBSCRIPTION_TEXT_BYTES_MAX or "\0" in worker:
        raise _invalid(
            f"worker must be a non-empty string of at most {SUBSCRIPTION_TEXT_BYTES_MAX} bytes "
            "without NUL"
        )
    if len(claim_id.encode()) > SUBSCRIPTION_ID_BYTES_MAX or "\0" in claim_id:
        raise _invalid(f"claim_id has at most {SUBSCRIPTION_ID_BYTES_MAX} bytes without NUL")
    return ClaimWork(key, request.base_url, worker, claim_id)


def _share_lanes(request: Request, key: str) -> AnyOperation:
    body = _read(request, _WorkersBody)
    worker, lanes = body.worker, body.lanes
    if not worker or len(worker.encode()) > SUBSCRIPTION_WORKER_BYTES_MAX or "\0" in worker:
        raise _invalid(
            f"worker must be a non-empty string of at most {SUBSCRIPTION_WORKER_BYTES_MAX} bytes "
            "without NUL"
        )
    if not 1 <= lanes <= SUBSCRIPTION_LANES_MAX:
        raise _invalid(f"lanes is {lanes}; expected an integer from 1 to {SUBSCRIPTION_LANES_MAX}")
    wrong = [lane for lane in body.busy if not 0 <= lane < lanes]
    if wrong:
        raise _invalid(f"busy has {wrong[0]}; expected lanes from 0 to {lanes - 1}")
    return ShareLanes(key, request.base_url, worker, lanes, sorted(set(body.busy)), body.leave)


def _wake_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _Refused(
            refuse(
                401,
                "TOKEN_INVALID",
                "the Authorization header must be: Bearer, and the token of the wake",
            )
        )
    return token.strip()


def _retry(request: Request, key: str) -> AnyOperation:
    token, body = _wake_token(request), _read(request, _RetryBody)
    after_ms, record = body.after_ms, bytes(body.record)
    if after_ms is not None and not 0 <= after_ms <= SUBSCRIPTION_PAUSE_MS_MAX:
        raise _invalid(
            f"after_ms is {after_ms}; expected an integer from 0 to {SUBSCRIPTION_PAUSE_MS_MAX}"
        )
    if len(body.error.encode()) > SUBSCRIPTION_TEXT_BYTES_MAX:
        raise _invalid(f"error has at most {SUBSCRIPTION_TEXT_BYTES_MAX} bytes")
    if record and valid_value(record) is None:
        raise _invalid("record is not one valid JSON value")
    return RetryWork(
        key,
        request.base_url,
        token,
        body.generation,
        body.wake_id,
        _acks(body),
        _acknowledged(_Ack(body.offset, body.stream)),
        body.offset,
        after_ms,
        body.error,
        record,
    )


def _reset(request: Request, key: str, now_ms: int) -> AnyOperation:
    body = _read(request, _ResetBody)
    streams = _names(body.streams)
    to, time_ms, offset = body.to, 0, ""
    if to not in ("earliest", "latest"):
        if parse_token(to) is not None:
            to, offset = "offset", to
            if len(streams) != 1:
                raise _invalid(
                    f"an offset is of one stream, and streams names {len(streams)}: name that one"
                )
        else:
            try:
                to, time_ms = "time", parse_time_ms(to, now_ms)
            except BadField as bad:
                raise _invalid(
                    f"to is '{body.to[:64]}'; expected earliest, latest, an offset of one stream, or a "
                    f"time: {bad}"
                ) from None
    return Reset(key, request.base_url, streams, to, time_ms, offset, body.force, body.dry_run)


def _work(request: Request, key: str, verb: str) -> AnyOperation:
    token, body = _wake_token(request), _read(request, _WorkBody)
    return Work(
        key,
        request.base_url,
        verb,
        token,
        body.generation,
        body.wake_id,
        _acks(body),
        body.done is True,
    )


def _acks(body: _WakeBody) -> list[tuple[str, str]]:
    return [(_acknowledged(ack), ack.offset) for ack in body.acks or ()]


def _acknowledged(ack: _Ack) -> str:
    """Return the canonical name, or an invalid name unchanged: it gets the same response as a
    stream outside the subscription."""
    path = ack.stream if ack.stream is not None else ack.path or ""
    try:
        return canonical_name(path.strip("/"))
    except BadName:
        return path


def _config(body: _PutBody) -> SubscriptionConfig:
    """Return the normalised configuration. Raises `_Refused`."""
    if body.type not in ("webhook", "pull-wake"):
        raise _invalid('type must be "webhook" or "pull-wake"')
    pull = body.type == "pull-wake"
    pattern = (body.pattern or "").strip("/")
    streams = sorted(_names(body.streams or []))
    if not pattern and not streams:
        raise _invalid("at least one of pattern and streams is required")
    if pattern:
        try:
            check_pattern(pattern)
        except BadPattern as bad:
            raise _invalid(str(bad)) from None
    if not LEASE_MS_MIN <= body.lease_ttl_ms <= LEASE_MS_MAX:
        raise _invalid(f"lease_ttl_ms must be an integer from {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    if not pull and (body.webhook is None or not body.webhook.url):
        raise _invalid("webhook subscriptions require webhook.url")
    if pull and not body.wake_stream:
        raise _invalid("pull-wake subscriptions require wake_stream")
    if len((body.description or "").encode()) > SUBSCRIPTION_TEXT_BYTES_MAX:
        raise _invalid(f"description has at most {SUBSCRIPTION_TEXT_BYTES_MAX} bytes")
    wake_stream = _name(body.wake_stream) if pull and body.wake_stream else ""
    if wake_stream in streams:
        raise _invalid("a subscription cannot watch its own wake_stream")
    url = body.webhook.url if body.webhook is not None and not pull else ""
    return SubscriptionConfig(
        PULL_WAKE if pull else WEBHOOK,
        pattern,
        streams,
        url,
        wake_stream,
        body.lease_ttl_ms,
        body.description,
    )


def _limit_of_attempts(body: _PutBody, config: SubscriptionConfig) -> tuple[int, str]:
    """Return the limit of attempts and the dead-letter stream; (0, "") without. Raises
    `_Refused`."""
    limit, stream = body.max_attempts, body.dead_letter_stream
    if limit is None and not stream:
        return 0, ""
    if limit is None or not stream:
        raise _invalid(
            "max_attempts and dead_letter_stream go together: pass both, or none of them"
        )
    if not 1 <= limit <= SUBSCRIPTION_ATTEMPTS_MAX:
        raise _invalid(
            f"max_attempts is {limit}; expected an integer from 1 to {SUBSCRIPTION_ATTEMPTS_MAX}"
        )
    name = _name(stream)
    matched = bool(config.pattern) and compile_pattern(config.pattern)(name)
    if matched or name in config.streams or name == config.wake_stream:
        raise _invalid(
            f"dead_letter_stream '{stream}' is watched by the subscription, or is its wake_stream: "
            "pass another stream"
        )
    return limit, name


def _names(paths: list[str]) -> list[str]:
    if len(paths) > SUBSCRIPTION_STREAMS_MAX:
        raise _invalid(
            f"streams holds at most {SUBSCRIPTION_STREAMS_MAX} paths; use a pattern for more"
        )
    return list(dict.fromkeys(_name(path) for path in paths))


def _name(path: str) -> str:
    try:
        return canonical_name(path.strip("/"))
    except BadName as bad:
        raise _invalid(f"'{path}' is not a valid stream path: {bad}") from None


def _read(request: Request, shape: Any) -> Any:
    try:
        return msgspec.json.decode(request.body or b"{}", type=shape)
    except RecursionError:
        raise _invalid("the body is nested too deeply") from None
    except UNREADABLE as error:
        raise _invalid(f"the body is not valid for this route: {error}") from None


def _only(request: Request, method: str, allowed: str = "") -> None:
    if request.method != method:
        raise _Refused(_not_allowed(allowed or method))


def _not_allowed(allowed: str) -> OperationResult:
    return refuse(405, "METHOD_NOT_ALLOWED", f"this path allows {allowed}", allow=allowed)


def _invalid(message: str) -> _Refused:
    return _Refused(refuse(400, "INVALID_REQUEST", message))
