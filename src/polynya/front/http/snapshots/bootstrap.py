"""GET of STREAM/bootstrap: the newest snapshot and the records behind it, in one answer or live.

Without a snapshot the records begin at the first one. If that is not record 0, the stream has been
trimmed and no snapshot covers the hole: half of a document is never an answer, but 410.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from polynya.base.limits import BOOTSTRAP_BYTES_MAX, SNAPSHOT_EMBEDDED_BYTES
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange, Headers
from polynya.front.http.protocol.responses import NO_CACHE
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.routes.decoded_pages import page_up_to, shown_of
from polynya.front.http.routes.pages import allowed_bytes, is_json_stream, send_parts
from polynya.front.http.routes.read_request import ReadRequest, is_local, resumed
from polynya.front.http.routes.refusals import fail_refusal
from polynya.front.http.routes.sse import open_sse
from polynya.front.http.snapshots.asked import begin_of, mark_headers, path_of
from polynya.front.http.snapshots.show import read_body
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.stream.parts import Mark
from polynya.stream.replies import Code
from polynya.wire.headers import format_event_id, media_type, none_match
from polynya.wire.http.snapshots import Piece, boundary_of, multipart
from polynya.wire.http.sse import sse_encoding, whole_event
from polynya.wire.json_records import array_parts
from polynya.wire.kafka.values import values_type
from polynya.wire.record_pages import Form

_JUDGED = frozenset(("if-none-match",))
_BOUNDARY_BYTES = 16  # drawn for each answer, when its records are stored
_ROUNDS = 3  # until the records behind a snapshot are read before they are trimmed
JSON = "application/json"


def bootstrap(exchange: Exchange) -> None:
    """Handle GET. Raises `Failure`."""
    refuse_conditions(exchange, _JUDGED)
    live = exchange.query.get("live", "")
    if live not in ("", "sse"):
        raise Failure("INVALID_PARAMETER", f"live must be sse at bootstrap, not '{live[:64]}'")
    if live and (last := exchange.head.headers.get("last-event-id")):
        open_sse(exchange, resumed(exchange, last))  # it has the snapshot
        return
    work = _follow if live else _answer
    exchange.spawn(work(exchange, local=is_local(exchange)), waits=True)


# --- one answer -----------------------------------------------------------------------------------


async def _answer(exchange: Exchange, *, local: bool) -> None:
    for number in range(_ROUNDS):
        begin = await begin_of(exchange, local=local)
        if begin is None:
            return
        info, mark = begin
        query = _tail_of(exchange, mark, local=local)
        page = exchange.stream.read_nowait(query) or await exchange.stream.read(query)
        if isinstance(page, Page) and page.info.uid == info.uid:
            await _send(exchange, page, mark)
            return
        if isinstance(page, Refusal) and (page.code != Code.TRIMMED or number == _ROUNDS - 1):
            fail_refusal(exchange, page)
            return
    raise Failure("UNAVAILABLE", "the stream was created again during the request; retry")


def _tail_of(exchange: Exchange, mark: Mark | None, *, local: bool) -> ReadQuery:
    size = (0 if mark is None else mark.size) + BOOTSTRAP_BYTES_MAX
    allowed = min(BOOTSTRAP_BYTES_MAX, allowed_bytes(exchange, size))
    at = (0, 0) if mark is None else (mark.record, mark.byte)
    return ReadQuery(exchange.route.name, *at, bytes_max=allowed, whole_records=True, local=local)


async def _send(exchange: Exchange, page: Page, mark: Mark | None) -> None:
    info = page.info
    is_json = is_json_stream(info)
    shown = await shown_of(page, page.first_record, Form(False, is_json), BOOTSTRAP_BYTES_MAX)
    if shown.damage:
        header = ("Stream-Next-Offset", format_token(shown.record, shown.byte))
        raise Failure("KAFKA_BATCH_UNREADABLE", shown.damage, (header,))
    page = page_up_to(page, shown)
    etag, headers = _etag(page, mark, "j" if _wants_json(exchange) else "m"), _headers(page, mark)
    shown_etag = etag if _wants_json(exchange) else f"W/{etag}"  # each answer has its own boundary
    headers.append(("ETag", shown_etag))
    if none_match(exchange.head.headers.get("if-none-match"), etag):
        exchange.answer(304, headers)
        return
    body: Piece = b""
    embeds = mark is not None and mark.size <= SNAPSHOT_EMBEDDED_BYTES
    if mark is not None and (embeds or not _wants_json(exchange)):
        found = await read_body(exchange, info, mark)
        if found is None:
            return
        body = found
    tail: Sequence[Piece] = array_parts(shown.parts) if is_json else shown.parts
    if _wants_json(exchange):
        _check_json(info, mark, is_json=is_json)
        answer = _envelope(exchange, page, mark, body if embeds else None, tail)
        send_parts(exchange, [("Content-Type", JSON), *headers], answer)
        return
    boundary = boundary_of(secrets.token_bytes(_BOUNDARY_BYTES))
    kind = ("Content-Type", f"multipart/mixed; boundary={boundary}")
    send_parts(exchange, [kind, *headers], multipart(boundary, _parts(page, mark, body, tail)))


def _parts(
    page: Page, mark: Mark | None, body: Piece, tail: Sequence[Piece]
) -> list[tuple[Headers, Sequence[Piece]]]:
    found: list[tuple[Headers, Sequence[Piece]]] = []
    if mark is not None:
        headers = [("Content-Type", mark.content_type), *mark_headers(page.info, mark)[:-1]]
        found.append((headers, [body]))
    end = ("Stream-Next-Offset", format_token(page.record, page.byte))
    found.append(([("Content-Type", values_type(page.info.content_type)), end], tail))
    return found


def _etag(page: Page, mark: Mark | None, variant: str) -> str:
    """Return the ETag of an answer, which names all that it consists of."""
    info, end = page.info, format_token(page.record, page.byte)
    state = (":c" if info.closed else ":t") if page.has_all else ""
    begin = "0" if mark is None else f"{mark.record}.{mark.sha256[:8].hex()}"
    return f'"{info.uid:x}.{info.history:x}-{begin}-{end}:{variant}{state}"'


def _headers(page: Page, mark: Mark | None) -> Headers:
    """Return the headers of an answer but its type and ETag."""
    info = page.info
    headers = [
        ("Stream-Next-Offset", format_token(page.record, page.byte)),
        ("Stream-Incarnation", str(info.uid)),
        ("Cache-Control", NO_CACHE),
        ("Vary", "Accept"),
        ("Content-Security-Policy", "sandbox"),
    ]
    if mark is not None:
        headers.append(("Stream-Snapshot-Offset", format_token(mark.record, mark.byte)))
    if page.has_all:
        headers.append(("Stream-Up-To-Date", "true"))
        if info.closed:
            headers.append(("Stream-Closed", "true"))
    return headers


# --- JSON -----------------------------------------------------------------------------------------


def _wants_json(exchange: Exchange) -> bool:
    accept = exchange.head.headers.get("accept", "")
    return any(media_type(part) == JSON for part in accept.split(","))


def _check_json(info: StreamInfo, mark: Mark | None, *, is_json: bool) -> None:
    """Raise `Failure` if the stream or its snapshot is not JSON."""
    if not is_json:
        raise Failure(
            "NOT_ACCEPTABLE",
            f"the stream holds {info.content_type}, and application/json is only for streams and "
            "snapshots of JSON: ask for multipart/mixed",
        )
    if mark is not None and media_type(mark.content_type) != JSON:
        raise Failure(
            "NOT_ACCEPTABLE",
            f"the snapshot is {mark.content_type}, and application/json is only for streams and "
            "snapshots of JSON: ask for multipart/mixed",
        )


def _envelope(
    exchange: Exchange, page: Page, mark: Mark | None, body: Piece | None, tail: Sequence[Piece]
) -> list[Piece]:
    """Return the pieces of the JSON answer. The body was checked to be one value."""
    snapshot: list[Piece] = [b'{"snapshot":null']
    if mark is not None:
        token = format_token(mark.record, mark.byte).encode()
        url = msgspec.json.encode(path_of(exchange, mark))
        snapshot = [b'{"snapshot_url":', url] if body is None else [b'{"snapshot":', body]
        snapshot.append(b',"snapshot_offset":"%b"' % token)
    end = format_token(page.record, page.byte).encode()
    up_to_date = b"true" if page.has_all else b"false"
    return [
        *snapshot,
        b',"records":',
        *tail,
        b',"next_offset":"%b","up_to_date":%b}' % (end, up_to_date),
    ]


# --- live -----------------------------------------------------------------------------------------


async def _follow(exchange: Exchange, *, local: bool) -> None:
    begin = await begin_of(exchange, local=local)
    if begin is None:
        return
    info, mark = begin
    incarnation = (info.uid, info.history)
    if mark is None:
        query = ReadQuery(exchange.route.name, 0, 0, local=local)
        open_sse(exchange, ReadRequest(query, "sse", incarnation=incarnation))
        return
    event = await _snapshot_event(exchange, info, mark)
    if event is None:
        return
    query = ReadQuery(exchange.route.name, mark.record, mark.byte, local=local)
    open_sse(exchange, ReadRequest(query, "sse", incarnation=incarnation, first_event=event))


async def _snapshot_event(exchange: Exchange, info: StreamInfo, mark: Mark) -> bytes | None:
    """Return the event with a snapshot, or with its URL if it is large; None if the error has been
    sent. Its id is where the records go on, so a reconnect does not get it again."""
    event_id = format_event_id(mark.record, mark.byte, (info.uid, info.history))
    if mark.size > SNAPSHOT_EMBEDDED_BYTES:
        url = {"snapshot_url": path_of(exchange, mark)}
        return whole_event(event_id, "snapshot-url", msgspec.json.encode(url))
    body = await read_body(exchange, info, mark)
    if body is None:
        return None
    encoding = sse_encoding(media_type(mark.content_type))
    return whole_event(event_id, "snapshot", bytes(body), encoding)
