"""GET /v1/streams: list the streams under a prefix by name, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import ATTRS_LISTED_MAX
from polynya.base.names import DEFAULT_BUCKET, BadName, canonical_name, spelled_name
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.responses import NO_STORE
from polynya.front.http.routes.read_request import is_local
from polynya.local.api import StreamInfo
from polynya.wire.headers import format_instant
from polynya.wire.http.attributes import etag_of_attributes
from polynya.wire.kafka.values import values_type

_LIMIT_DEFAULT = 100
_LIMIT_MAX = 1000
ATTRIBUTE = "attr."  # how the parameters begin that name an attribute
_ATTRIBUTES_MAX = 8
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def list_streams(exchange: Exchange) -> None:
    """Handle the list. `prefix` and `after` are spelled names. Raises `Failure`."""
    text = exchange.query.get("limit", str(_LIMIT_DEFAULT))
    if not (text.isdecimal() and text.isascii() and len(text) <= 9 and int(text) > 0):
        raise Failure("INVALID_PARAMETER", f"limit must be a whole number from 1 to {_LIMIT_MAX}")
    after = exchange.query.get("after", "")
    try:
        begin = canonical_name(after) if after else ""
    except BadName as bad:
        raise Failure("INVALID_PARAMETER", f"after: {bad}") from None
    if exchange.query.get("attrs", "1") != "1":
        raise Failure(
            "INVALID_PARAMETER", "attrs must be 1, which lists attributes; or leave it out"
        )
    wanted = _wanted(exchange.query)
    attributes = bool(wanted) or "attrs" in exchange.query
    limit = min(int(text), ATTRS_LISTED_MAX if attributes else _LIMIT_MAX)
    listed = _list(
        exchange, begin, limit, local=is_local(exchange), attributes=attributes, wanted=wanted
    )
    exchange.spawn(listed, waits=True)


async def _list(
    exchange: Exchange,
    after: str,
    limit: int,
    *,
    local: bool,
    attributes: bool,
    wanted: dict[str, str],
) -> None:
    prefix = exchange.query.get("prefix", "")
    parts = covering_prefixes(exchange.principal, prefix)
    found = await _find(exchange, parts, after, limit + 1, local=local, attributes=attributes)
    page = found[:limit]
    shown = [info for info in page if has_attributes(info, wanted)] if wanted else page
    answer = {
        "streams": [_entry(info) | _attributes(info, asked=attributes) for info in shown],
        "next": spelled_name(page[-1].name) if len(found) > limit else None,
    }
    exchange.answer(
        200,
        [("Content-Type", "application/json"), ("Cache-Control", NO_STORE)],
        msgspec.json.encode(answer),
    )


def covering_prefixes(principal: Principal | None, prefix: str) -> list[str]:
    """Return the canonical prefixes that cover what the caller may read under a spelled prefix."""
    return [each for part in _parts(prefix) for each in _visible(principal, part)]


def _visible(principal: Principal | None, prefix: str) -> list[str]:
    """Return the prefixes that cover the caller's readable part of this one."""
    if principal is None:
        return [prefix]
    granted = principal.prefixes(Verb.READ)
    return [
        max(prefix, each, key=len)
        for each in granted
        if each.startswith(prefix) or prefix.startswith(each)
    ]


def _parts(prefix: str) -> tuple[str, ...]:
    """Return the canonical prefixes of a prefix: also without the bucket `default`."""
    return (prefix, f"{DEFAULT_BUCKET}/{prefix}") if prefix else ("",)


async def _find(
    exchange: Exchange,
    prefixes: list[str],
    after: str,
    limit: int,
    *,
    local: bool,
    attributes: bool,
) -> list[StreamInfo]:
    """Return the streams under any of the prefixes, sorted by name."""
    found: list[StreamInfo] = []
    for prefix in prefixes:
        found += await exchange.context.service.list_streams(
            prefix, after, limit, local=local, attributes=attributes
        )
    by_name = {info.name: info for info in found}
    return [by_name[name] for name in sorted(by_name)][:limit]


def _wanted(query: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes that a stream must have to be shown, as texts by name. Raises
    `Failure`."""
    wanted = {
        name.removeprefix(ATTRIBUTE): value
        for name, value in query.items()
        if name.startswith(ATTRIBUTE)
    }
    if "" in wanted or len(wanted) > _ATTRIBUTES_MAX:
        raise Failure(
            "INVALID_PARAMETER",
            f"{ATTRIBUTE}NAME=VALUE names an attribute, and a list has at most {_ATTRIBUTES_MAX}",
        )
    return wanted


def has_attributes(info: StreamInfo, wanted: Mapping[str, str]) -> bool:
    """Report whether the stream has all of these: a text as it is, another value as its JSON."""
    if info.attributes is None:
        return False
    held = _decode_members(info.attributes.value)
    return all(name in held and _text_of(held[name]) == text for name, text in wanted.items())


def _text_of(value: msgspec.Raw) -> str:
    text = bytes(value).decode()
    return msgspec.json.decode(text) if text.startswith('"') else text


def _attributes(info: StreamInfo, *, asked: bool) -> dict[str, Any]:
    if not asked:
        return {}
    held = info.attributes
    revision, value = (0, b"{}") if held is None else (held.revision, held.value)
    return {
        "attrs": msgspec.Raw(value),
        "attrs_etag": etag_of_attributes(info.uid, info.history, revision),
    }


def _entry(info: StreamInfo) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": spelled_name(info.name),
        "content_type": values_type(info.content_type),
        "next_offset": format_token(info.record, info.byte),
        "closed": info.closed,
        "incarnation": str(info.uid),
        "created_at": format_instant(info.created_ms),
    }
    if info.first_record:
        entry["retained_offset"] = format_token(info.first_record, info.first_byte)
    if info.ttl_seconds is not None:
        entry["ttl_seconds"] = info.ttl_seconds
    if info.expires_at_ms is not None:
        entry["expires_at"] = format_instant(info.expires_at_ms)
    return entry
