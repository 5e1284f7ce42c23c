"""Parse a request for many streams: a list, a prefix or a pattern, and where each stream begins."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import HEADER_BLOCK_BYTES_MAX, KIB, LIVE_STREAMS_MAX
from polynya.base.names import BadName, canonical_name, spelled_name
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.listing import covering_prefixes
from polynya.front.http.routes.read_request import LIVE, is_local, parse_offset, poll_seconds
from polynya.local.api import Position
from polynya.service.live.cursors import State, StreamPosition, is_event_id
from polynya.stream.features.subscriptions.globs import BadPattern, check_pattern, compile_pattern
from polynya.wire.http.targets import repeated

Offset = tuple[int, int]  # record or a `Position`, byte


class Selection(msgspec.Struct, frozen=True):
    """The streams of a request. `listed`: where each named stream begins. `prefixes`: all streams
    under them that `matches` accepts belong to it too, and begin at `begin`; none for a list."""

    listed: dict[str, Offset]
    begin: Offset
    prefixes: list[str]
    matches: Callable[[str], bool]
    pattern: str  # the text of the prefix or pattern, and which of them it is
    local: bool
    cursor: str = ""  # the id of the last event that the client has
    seconds: float | None = None  # the longest wait of a long-poll; None: an event stream

    def wants(self, name: str) -> bool:
        """Report whether a new stream belongs to the selection."""
        return name in self.listed or self.matches(name)

    def is_of_same_streams(self, other: Selection) -> bool:
        """Report whether both select the same streams, for callers who may read the same ones."""
        return (self.pattern, self.prefixes, self.begin, self.local, self.listed) == (
            (other.pattern, other.prefixes, other.begin, other.local, other.listed)
        )

    def begin_of(self, name: str, position: StreamPosition | None) -> Offset:
        """Return where a stream begins of which the client has been told nothing. One that the
        cursor does not know was created later, and begins at its start."""
        if position is not None and position.state == State.UNTOLD:
            return position.record, position.byte
        begin = self.listed.get(name, self.begin)
        is_later = bool(self.cursor) and begin[0] == Position.NOW
        return (Position.START, 0) if is_later else begin


def parse_selection(exchange: Exchange) -> Selection:
    """Parse the request. Raises `Failure`, also for a named stream that the caller may not read."""
    query, principal = exchange.query, exchange.principal
    view = query.get("record_view", "records")
    if view != "records":
        raise Failure("INVALID_PARAMETER", f"record_view must be records here, not '{view[:64]}'")
    mode = query.get("live", "sse")
    if mode not in LIVE:
        raise Failure("INVALID_PARAMETER", f"live must be sse or long-poll, not '{mode[:64]}'")
    if "prefix" in query and "match" in query:
        raise Failure("INVALID_PARAMETER", "prefix and match exclude each other; give one of them")
    begin = parse_offset(query.get("offset", "-1"), bare=False)
    if begin[0] not in (Position.START, Position.NOW):
        raise Failure(
            "INVALID_PARAMETER",
            "offset must be -1 or now here, for all streams; the offset of one stream is "
            "stream=NAME@OFFSET",
        )
    listed = _listed(exchange, begin)
    prefixes, matches = _covered(query, principal)
    if not listed and not ("prefix" in query or "match" in query):
        raise Failure(
            "INVALID_PARAMETER",
            "name the streams: stream=NAME or stream=NAME@OFFSET, repeated, or prefix=PREFIX, or "
            "match=PATTERN",
        )
    seconds = None
    if mode == "long-poll":
        seconds = poll_seconds(exchange, exchange.context.settings.long_poll_seconds)
    pattern = next((f"{kind}={query[kind]}" for kind in ("prefix", "match") if kind in query), "")
    local, cursor = is_local(exchange), _cursor(exchange)
    return Selection(listed, begin, prefixes, matches, pattern, local, cursor, seconds)


def _listed(exchange: Exchange, begin: Offset) -> dict[str, Offset]:
    names = repeated(exchange.head.target.partition("?")[2], "stream")
    if len(names) > LIVE_STREAMS_MAX:
        raise Failure(
            "INVALID_PARAMETER",
            f"a list has at most {LIVE_STREAMS_MAX} streams, this one has {len(names)}; a prefix "
            f"or a pattern has no list (a request's head has at most "
            f"{HEADER_BLOCK_BYTES_MAX // KIB} KiB)",
        )
    listed: dict[str, Offset] = {}
    for text in names:
        name, position = _named(text, begin)
        if name in listed:
            raise Failure("INVALID_PARAMETER", f"'{spelled_name(name)[:64]}' is named twice")
        if exchange.principal is not None and not exchange.principal.may(Verb.READ, name):
            raise Failure("FORBIDDEN", f"the token does not allow 'read' on {spelled_name(name)}")
        listed[name] = position
    return listed


def _named(text: str, begin: Offset) -> tuple[str, Offset]:
    """Parse `NAME` or `NAME@OFFSET`. The rest behind the last @ is part of the name unless it is an
    offset."""
    name, at, offset = text.rpartition("@")
    try:
        if at and (offset in ("-1", "now") or parse_token(offset) is not None):
            return canonical_name(name), parse_offset(offset, bare=False)
        return canonical_name(text), begin
    except BadName as bad:
        raise Failure("INVALID_PARAMETER", f"stream={text[:64]}: {bad}") from None


def _covered(
    query: dict[str, str], principal: Principal | None
) -> tuple[list[str], Callable[[str], bool]]:
    """Return the canonical prefixes of the streams that a prefix or pattern has for this caller,
    and the test of a name."""
    if "match" in query:
        pattern = query["match"].strip("/")
        try:
            check_pattern(pattern)
        except BadPattern as bad:
            raise Failure("INVALID_PARAMETER", f"match: {bad}") from None
        fits = compile_pattern(pattern)
        prefix = pattern.partition("*")[0]
        prefix = "" if "%" in prefix else prefix
    elif "prefix" in query:
        prefix = query["prefix"]
        fits = _any
    else:
        return [], _none
    prefixes = tuple(covering_prefixes(principal, prefix))
    return [*prefixes], lambda name: name.startswith(prefixes) and fits(name)


def _cursor(exchange: Exchange) -> str:
    """Return the id of the client's last event, from the header or a parameter; "" without one."""
    text = exchange.head.headers.get("last-event-id") or exchange.query.get("cursor", "")
    if text and not is_event_id(text):
        raise Failure(
            "INVALID_HEADER",
            f"Last-Event-ID and cursor must be the id of an event of this path, not '{text[:64]}'",
        )
    return text


def _any(name: str) -> bool:
    return True


def _none(name: str) -> bool:
    return False
