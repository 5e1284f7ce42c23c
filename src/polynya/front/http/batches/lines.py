"""Lines of a body that are appends: of `POST /v1/append` and `POST /v1/append-all`."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from functools import partial

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import BadName, canonical_name
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.bodies import RECORDS_BODY, batch_of, decode, encoding_of
from polynya.front.http.routes.conditions import on_condition, read_condition
from polynya.front.http.routes.refusals import refusal_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import (
    BadField,
    parse_content_type,
    parse_incarnation,
    parse_producer,
    parse_stream_seq,
)
from polynya.wire.http.body_coding import CODED

LINES = "application/x-ndjson"
_AT_ONCE_BYTES = 64 * 1024  # of a body; a larger one is parsed in a thread
_JSON = "application/json"
_OCTETS = "application/octet-stream"
_TEXT = "text/plain"


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the body: one append."""

    stream: str
    records: msgspec.Raw = msgspec.Raw()  # its bytes; b"" without one
    base64: str | None = None
    text: str | None = None
    content_type: str = ""
    producer: tuple[str, int, int] | None = None  # id, epoch, sequence
    stream_seq: str | None = None
    if_match: str | None = None  # an offset
    incarnation: int | None = None
    close: bool = False

    @property
    def is_condition(self) -> bool:
        """True if nothing is appended, and the stream is not closed."""
        has_records = self.base64 is not None or self.text is not None or bytes(self.records)
        return self.if_match is not None and not has_records and not self.close

    @property
    def asked(self) -> dict[str, str]:
        """The headers of a request with the same append."""
        headers = {}
        if self.content_type:
            headers["content-type"] = self.content_type
        if self.producer is not None:
            names = ("producer-id", "producer-epoch", "producer-seq")
            headers |= dict(zip(names, map(str, self.producer), strict=True))
        if self.stream_seq is not None:
            headers["stream-seq"] = self.stream_seq
        if self.if_match is not None:
            headers["if-match"] = f'"{self.if_match}"'
        if self.incarnation is not None:
            headers["stream-incarnation"] = str(self.incarnation)
        return headers


class Item(msgspec.Struct):
    """An append that was read: its line, its stream and its batch, or why it is refused."""

    line: Line
    name: str = ""
    asked: dict[str, str] = {}
    batch: Batch | None = None
    failure: Failure | None = None


_decode_line = msgspec.json.Decoder(Line).decode


async def read_items(exchange: Exchange, most: int, *, conditions: bool = False) -> list[Item]:
    """Read the body's lines, at most `most`; with `conditions` also those that append nothing. The
    limits of the caller's token count each. Raises `Failure` for a body that is not of such lines:
    nothing of it is appended."""
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    body, exchange.body = exchange.body, b""
    if not body.strip():
        raise Failure("EMPTY_BODY", f"the body is empty: expected {LINES}, one append on a line")
    work = partial(_items_of, body, most, conditions=conditions)
    items = work() if len(body) <= _AT_ONCE_BYTES else await asyncio.to_thread(work)
    meter = exchange.peer.meter
    if meter is not None and len(items) > 1:
        meter.admit(exchange.context.now(), 0, len(items) - 1)
    return items


def _items_of(body: bytes, most: int, *, conditions: bool) -> list[Item]:
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if len(lines) > most:
        raise Failure(
            "TOO_MANY_RECORDS",
            f"the body has {len(lines)} lines; one request takes at most {most} "
            "appends: send them in several",
        )
    return [_item_of(number, line, conditions=conditions) for number, line in lines]


def _item_of(number: int, text: bytes, *, conditions: bool) -> Item:
    try:
        line = _decode_line(text)
    except (RecursionError, *UNREADABLE) as error:
        raise Failure(
            "INVALID_REQUEST",
            f"line {number} is not an append: {error}. Expected an object such as "
            '{"stream":"orders","records":[{"item":7}]}; nothing was appended',
        ) from None
    item = Item(line)
    try:
        item.name = canonical_name(line.stream)
        if not (conditions and line.is_condition):
            item.batch = _batch_of(line)
        item.asked = line.asked
    except BadName as bad:
        item.failure = Failure("INVALID_NAME", str(bad))
    except Failure as failure:
        item.failure = failure
    return item


def _batch_of(line: Line) -> Batch | None:
    """Return the records of a line; None for one that only closes. Raises `Failure`."""
    values = {"records": bytes(line.records) or None, "base64": line.base64, "text": line.text}
    given = [name for name, value in values.items() if value is not None]
    if len(given) > 1:
        raise Failure(
            "INVALID_REQUEST", f"the append has both {given[0]} and {given[1]}: send one of them"
        )
    if not given:
        if line.close:
            return None
        raise Failure(
            "EMPTY_BODY", "the append has neither records, base64 nor text, and no close: true"
        )
    kind = given[0]
    default = {"records": _JSON, "base64": _OCTETS, "text": _TEXT}[kind]
    line.content_type = line.content_type or default
    try:
        parse_content_type(line.content_type)
    except BadField as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None
    encoding = encoding_of(line.content_type)
    if encoding == RECORDS_BODY:
        raise Failure(
            "NOT_SUPPORTED", "whole records are not supported here: POST them to the stream itself"
        )
    batch = batch_of(encoding, _body_of(line, kind, encoding))
    if batch is None:
        raise Failure("EMPTY_ARRAY")
    return batch


def _body_of(line: Line, kind: str, encoding: int) -> bytes:
    """Return the body that a request with the same append has. Raises `Failure`."""
    if kind == "records":
        body = bytes(line.records)
        if encoding != Encoding.JSON or body[:1] != b"[":
            raise Failure(
                "INVALID_REQUEST",
                f"records must be an array of JSON values, of a stream of {_JSON}; send the bytes "
                "of others as base64, or as text",
            )
        return body
    try:
        assert line.text is not None or line.base64 is not None
        body = (
            line.text.encode()
            if line.text is not None
            else b64decode(line.base64 or "", validate=True)
        )
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise Failure("INVALID_REQUEST", f"{kind} cannot be decoded: {error}") from None
    if not body:
        raise Failure("EMPTY_BODY", f"{kind} is empty: a record has at least one byte")
    return body


def check_right(principal: Principal | None, name: str) -> None:
    if principal is not None and not principal.may(Verb.APPEND, name):
        raise Failure("FORBIDDEN", f"the token does not allow '{Verb.APPEND}' on {name}")


def command_of(exchange: Exchange, item: Item) -> Append:
    """Return the command of an append. Raises `Failure`."""
    service, asked = exchange.context.service, item.asked
    try:
        producer, sequence = parse_producer(asked), parse_stream_seq(asked.get("stream-seq"))
        incarnation = 0
        if "stream-incarnation" in asked:
            incarnation = parse_incarnation(asked["stream-incarnation"])
        condition = read_condition(service, asked, incarnation) if "if-match" in asked else None
    except BadField as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None
    command = Append(
        item.name,
        service.now_ms(),
        asked.get("content-type", ""),
        item.batch,
        producer,
        sequence,
        item.line.close,
        incarnation,
    )
    return command if condition is None else on_condition(command, condition)


def why_refused(exchange: Exchange, item: Item, reply: Reply) -> tuple[str, str, str]:
    """Return the error code, the message ("": the default of the code) and the stream's next offset
    ("": not known) of an append that was refused."""
    has_store = exchange.context.settings.object_store
    code, message, headers = refusal_of(reply, item.asked, has_store=has_store)
    if reply.code == Code.NOT_FOUND:
        message = f"there is no stream '{item.line.stream}'; a PUT to its URL creates it"
    return code, message, dict(headers).get("Stream-Next-Offset", "")
