"""STREAM/attrs: the attributes of a stream (GET, PUT, PATCH, DELETE)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from polynya.base.levels import ATTRIBUTES_LEVEL
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.conditions import is_other_incarnation, refuse_conditions
from polynya.front.http.routes.read_request import is_local
from polynya.front.http.routes.refusals import fail_refusal, fail_reply
from polynya.local.api import Refusal, StreamInfo
from polynya.routing.proposals import reply_to
from polynya.stream.features.attributes.commands import SetAttributes
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import BadField, none_match, parse_incarnation
from polynya.wire.http.attributes import (
    AttributeCondition,
    TooLarge,
    encode_attributes,
    etag_of_attributes,
    parse_attributes,
    parse_match,
    patched,
)

_JUDGED = frozenset(("if-match", "if-none-match"))
_PATCH_TRIES = 16  # of a merge with attributes that others change meanwhile
_NONE = b"{}"


def show_attributes(exchange: Exchange) -> None:
    """Handle GET. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED - {"if-match"})
    exchange.spawn(_show(exchange, local=is_local(exchange)), waits=True)


async def _show(exchange: Exchange, *, local: bool) -> None:
    info = await exchange.stream.info(local=local)
    if isinstance(info, Refusal):
        fail_refusal(exchange, info)
    elif not is_other_incarnation(exchange, info):
        revision, value = _held(info)
        headers = _headers(exchange, info.uid, revision)
        if none_match(exchange.head.headers.get("if-none-match"), dict(headers)["ETag"]):
            exchange.answer(304, headers)
        else:
            exchange.answer(200, [("Content-Type", "application/json"), *headers], value or _NONE)


def put_attributes(exchange: Exchange) -> None:
    """Handle PUT. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED)
    asked = _condition(exchange)
    value = _judged(lambda: encode_attributes(parse_attributes(exchange.body)))
    exchange.spawn(_replace(exchange, value, asked))


def clear_attributes(exchange: Exchange) -> None:
    """Handle DELETE. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED - {"if-none-match"})
    exchange.spawn(_replace(exchange, None, _condition(exchange)))


async def _replace(exchange: Exchange, value: bytes | None, asked: AttributeCondition) -> None:
    reply = await _set(exchange, value, asked)
    if reply.code >= Code.NOT_FOUND:
        _fail(exchange, reply)
    else:
        exchange.answer(204, _headers(exchange, reply.uid, reply.detail))


def patch_attributes(exchange: Exchange) -> None:
    """Handle PATCH: a merge patch. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED - {"if-none-match"})
    asked = _condition(exchange)
    patch = _judged(lambda: parse_attributes(exchange.body))
    exchange.spawn(_patch(exchange, patch, asked))


async def _patch(exchange: Exchange, patch: dict[str, Any], asked: AttributeCondition) -> None:
    """Merge into the attributes as they are, and again if they changed before the merged ones were
    set."""
    for _ in range(_PATCH_TRIES):
        info = await exchange.stream.info()
        if isinstance(info, Refusal):
            fail_refusal(exchange, info)
            return
        revision, held = _held(info)
        if not asked.is_any and asked.revision != revision:
            _fail(exchange, Reply(Code.PRECONDITION, info.uid, detail=revision))
            return
        value = _judged(partial(patched, held, patch))
        reply = await _set(exchange, value, AttributeCondition(revision, asked.incarnation))
        if reply.code < Code.NOT_FOUND:
            headers = _headers(exchange, reply.uid, reply.detail)
            exchange.answer(200, [("Content-Type", "application/json"), *headers], value or _NONE)
            return
        if reply.code != Code.PRECONDITION or not asked.is_any:
            _fail(exchange, reply)
            return
    raise Failure(
        "UNAVAILABLE", f"the attributes changed during each of {_PATCH_TRIES} merges; retry"
    )


def _held(info: StreamInfo) -> tuple[int, bytes | None]:
    """Return the revision and the value of a stream's attributes."""
    held = info.attributes
    return (0, None) if held is None else (held.revision, held.value)


async def _set(exchange: Exchange, value: bytes | None, asked: AttributeCondition) -> Reply:
    service, name = exchange.context.service, exchange.route.name
    if service.level < ATTRIBUTES_LEVEL:
        raise Failure("UPGRADE_PENDING")
    command = SetAttributes(name, value, service.now_ms(), asked.incarnation, asked.revision)
    return await reply_to(partial(exchange.stream.propose, command))


def _condition(exchange: Exchange) -> AttributeCondition:
    """Return the attributes that the request asks for. Raises `Failure`."""
    headers = exchange.head.headers
    match, none = headers.get("if-match"), headers.get("if-none-match")
    try:
        uid = parse_incarnation(headers.get("stream-incarnation"))
        if match is None:
            return AttributeCondition(incarnation=uid) if none is None else _absent(none, uid)
        if none is not None:
            raise BadField("a request has If-Match or If-None-Match, not both")
        asked = parse_match(match, exchange.context.service.history)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    if uid not in (0, asked.incarnation):
        raise Failure(
            "INVALID_HEADER",
            f"Stream-Incarnation is {uid}, and the ETag in If-Match is of the incarnation "
            f"{asked.incarnation}: send one of them",
        )
    return asked


def _absent(value: str, uid: int) -> AttributeCondition:
    if value.strip() != "*":
        raise BadField(f"If-None-Match must be * at PUT, not '{value[:64]}'")
    return AttributeCondition(0, uid)


def _judged(parse: Callable[[], Any]) -> Any:
    """Return what a body says. Raises `Failure`."""
    try:
        return parse()
    except TooLarge as bad:
        raise Failure("BODY_TOO_LARGE", str(bad)) from None
    except BadField as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None


def _fail(exchange: Exchange, reply: Reply) -> None:
    if reply.code == Code.PRECONDITION:
        current = "there are none" if not reply.detail else "those there have another ETag"
        exchange.fail(
            REFUSALS[reply.code],
            f"the attributes are not those that the request names: {current}; read them, then "
            "decide again",
            _headers(exchange, reply.uid, reply.detail)[:2],
        )
    elif reply.code == Code.INCARNATION:
        incarnation = [("Stream-Incarnation", str(reply.uid))]
        exchange.fail(
            REFUSALS[reply.code],
            f"the stream is the incarnation {reply.uid}: it was created again",
            incarnation,
        )
    else:
        fail_reply(exchange, reply)


def _headers(exchange: Exchange, uid: int, revision: int) -> Headers:
    return [
        ("ETag", etag_of_attributes(uid, exchange.context.service.history, revision)),
        ("Stream-Incarnation", str(uid)),
        ("Cache-Control", NO_STORE),
    ]
