"""PUT: create a stream, with initial content, closed at once, or as a fork."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from msgspec import structs

from polynya.base.errors import PolynyaError
from polynya.base.levels import ATTRIBUTES_LEVEL
from polynya.base.names import DISKLESS, LEASED, REPLICATED, bucket_of, partition_of
from polynya.base.offsets import parse_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.bodies import (
    RECORDS_BODY,
    batch_of,
    decode,
    encoding_of,
    is_parsed_in_thread,
)
from polynya.front.http.routes.conditions import must_be_new
from polynya.front.http.routes.refusals import fail_refusal, fail_reply, tail_headers
from polynya.local.api import Refusal
from polynya.service.fork_snapshots import inherit_snapshots
from polynya.stream.features.lifetimes.commands import Create, CreateWithAttributes
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Batch
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import (
    OCTET_STREAM,
    RECORD_HEADERS,
    RECORDS,
    BadField,
    is_true,
    media_type,
    parse_content_type,
    parse_instant_ms,
    parse_producer,
    parse_profile,
    parse_retention,
    parse_stream_seq,
    parse_sub_offset,
    parse_ttl,
)
from polynya.wire.http import attributes
from polynya.wire.http.body_coding import CODED

_PENDING_TRIES = 20  # retries while another fork of the name is pending …
_PENDING_SECONDS = 0.1  # … and their interval


def create(exchange: Exchange) -> None:
    if partition_of(exchange.route.name) is not None:
        raise Failure("KAFKA_PARTITION")
    if "stream-incarnation" in exchange.head.headers:
        raise Failure(
            "NOT_SUPPORTED",
            "the header Stream-Incarnation is not supported at PUT, which may create the stream: "
            "send it with the appends",
        )
    headers = exchange.head.headers
    is_known = "stream-profile" in headers or exchange.context.service.bucket_profiles.is_fresh
    if is_known and CODED.isdisjoint(headers):
        _create(exchange)
    else:
        exchange.spawn(_prepare_and_create(exchange, is_known=is_known))


async def _prepare_and_create(exchange: Exchange, *, is_known: bool) -> None:
    """Create a stream once its body is decoded and the default profile of its bucket is known."""
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    if not is_known:
        await exchange.context.service.bucket_profiles.refresh()
    _create(exchange)


def _create(exchange: Exchange, parsed: tuple[Batch | None] | None = None) -> None:
    """Create a stream. `parsed`: the batch of a large body, which comes from a thread."""
    try:
        if "stream-forked-from" in exchange.head.headers:
            exchange.spawn(_fork(exchange))
            return
        if (
            "stream-fork-offset" in exchange.head.headers
            or "stream-fork-sub-offset" in exchange.head.headers
        ):
            raise BadField("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        content_type = parse_content_type(exchange.head.headers.get("content-type") or OCTET_STREAM)
        encoding = encoding_of(content_type)
        if parsed is None and is_parsed_in_thread(encoding, exchange.body):
            exchange.spawn(_parse_and_create(exchange, encoding))
            return
        command = _command(exchange, content_type, encoding, parsed)
    except BadField as bad:
        exchange.fail("INVALID_HEADER", str(bad))
        return
    exchange.stream.propose(command, partial(_created, exchange, command, _PENDING_TRIES))


async def _parse_and_create(exchange: Exchange, encoding: int) -> None:
    """Parse a large body while other connections are served, and create the stream."""
    parsed = (await asyncio.to_thread(batch_of, encoding, exchange.body),)
    _create(exchange, parsed)


def _command(
    exchange: Exchange,
    content_type: str,
    encoding: int,
    parsed: tuple[Batch | None] | None,
) -> Create:
    headers, body = exchange.head.headers, exchange.body
    _check_form(headers, encoding)
    profile, segments = parse_profile(headers, _default_profile(exchange))
    if profile == Profile.DISKLESS and not exchange.context.settings.object_store:
        raise BadField(
            "Stream-Profile: diskless needs an object store, and this node has none: set "
            "cold.backend, or create the stream as replicated"
        )
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise BadField("a stream has either Stream-TTL or Stream-Expires-At, not both")
    command = Create(
        exchange.route.name,
        exchange.context.service.now_ms(),
        content_type,
        encoding,
        ttl_seconds=None if ttl is None else parse_ttl(ttl),
        expires_at_ms=None if expires is None else parse_instant_ms(expires),
        closed=is_true(headers.get("stream-closed")),
        batch=parsed[0] if parsed else batch_of(encoding, body) if body else None,
        producer=parse_producer(headers),
        stream_seq=parse_stream_seq(headers.get("stream-seq")),
        retention=parse_retention(headers),
        segments=segments,
        profile=profile,
    )
    return command if attributes.HEADER not in headers else _with_attributes(exchange, command)


def _with_attributes(exchange: Exchange, command: Create) -> Create:
    value = attributes.parse_header(exchange.head.headers[attributes.HEADER])
    if value is None:
        return command
    if exchange.context.service.level < ATTRIBUTES_LEVEL:
        raise Failure("UPGRADE_PENDING")
    return CreateWithAttributes(**structs.asdict(command), attributes=value)


def _default_profile(exchange: Exchange) -> str:
    """Return the profile of a stream whose creation names none: that of its source, its bucket, or
    this node."""
    if "stream-forked-from" in exchange.head.headers:
        return REPLICATED  # the machine takes that of the source
    of_bucket = exchange.context.service.bucket_profiles.known(bucket_of(exchange.route.name))
    return of_bucket or exchange.context.settings.default_profile


def _check_form(headers: dict[str, str], encoding: int) -> None:
    """Refuse what describes records: only an append has it."""
    if encoding == RECORDS_BODY:
        raise BadField(
            f"Content-Type {RECORDS} is of the body of an append: create the stream with the type "
            "of its values"
        )
    found = RECORD_HEADERS & headers.keys()
    if found:
        raise BadField(f"{min(found).title()} is for an append: create the stream, then send it")


def _created(exchange: Exchange, command: Create, tries: int, reply: Reply | BaseException) -> None:
    if isinstance(reply, BaseException):
        exchange.fault(reply)
    elif reply.code == Code.ATTEMPT_PENDING and tries:
        again = partial(_created, exchange, command, tries - 1)
        asyncio.get_running_loop().call_later(
            _PENDING_SECONDS, exchange.stream.propose, command, again
        )
    elif reply.code in (Code.EXISTS, Code.EXISTS_DIFFERENT) and must_be_new(exchange):
        exchange.fail(
            "PRECONDITION",
            "the stream exists, and If-None-Match: * asks to create it only if it does not",
        )
    elif (
        reply.code == Code.EXISTS_DIFFERENT
        and command.profile
        and "stream-profile" not in exchange.head.headers
    ):  # the default is for new streams
        command = structs.replace(command, profile=0)
        again = partial(_created, exchange, command, tries)
        exchange.stream.propose(command, again)
    elif reply.code >= Code.NOT_FOUND:
        fail_reply(exchange, reply, creating=True)
    else:
        if command.profile == Profile.DISKLESS:
            exchange.context.service.expect_diskless(command.name)
        profile = _profile_of(command, reply)
        if profile is None:
            exchange.spawn(_look_up_and_answer(exchange, reply, command))
        else:
            _answer(exchange, reply, command, command.content_type, profile)


def _profile_of(command: Create, reply: Reply) -> str | None:
    """Return the profile of a stream that a create made or found. None: the command leaves it
    open, and the stream existed before or takes that of its source."""
    if command.segments is not None:
        return LEASED
    if command.profile == Profile.DISKLESS:
        return DISKLESS
    is_open = command.profile == Profile.REPLICATED
    if is_open and (reply.code == Code.EXISTS or command.fork is not None):
        return None
    return REPLICATED


async def _look_up_and_answer(
    exchange: Exchange, reply: Reply, command: Create, content_type: str = ""
) -> None:
    """Respond to a create with the profile that the stream has. Without it if the stream cannot be
    read: the create is applied, so a fault now is none of it."""
    profile = ""
    with suppress(PolynyaError):
        info = await exchange.stream.info()
        if not isinstance(info, Refusal):
            profile = LEASED if info.segment else Profile.NAMES[info.profile]
    _answer(exchange, reply, command, content_type or command.content_type, profile)


def _answer(
    exchange: Exchange, reply: Reply, command: Create, content_type: str, profile: str
) -> None:
    """Respond to a create. `content_type`: of a new stream. A core of the previous release does not
    return that of an existing one."""
    if reply.code == Code.EXISTS and reply.detail is not None:
        content_type = reply.detail
    route = exchange.route
    headers = [
        ("Location", exchange.base_url + route.path),
        ("Content-Type", content_type),
        ("Stream-Bucket", bucket_of(route.name)),
    ]
    if profile:
        headers.append(("Stream-Profile", profile))
    records = -1
    if media_type(content_type) == "application/json":
        is_new = reply.code in (Code.CREATED, Code.DUPLICATE)
        records = command.batch.records if is_new and command.batch is not None else 0
    headers += tail_headers(reply, records)
    exchange.answer(201 if reply.code == Code.CREATED else 200, headers)


async def _fork(exchange: Exchange) -> None:
    headers = exchange.head.headers
    source = exchange.context.router.stream_of(headers["stream-forked-from"])
    try:
        record, byte, sub_offset = _fork_point(headers)
        content_type = parse_content_type(headers.get("content-type", ""))
        known = content_type or await _type_of(exchange, source)
        if known is None:
            return
        command = _command(exchange, content_type, encoding_of(known), None)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    for _ in range(_PENDING_TRIES):
        reply = await exchange.context.service.fork(command, source, record, byte, sub_offset)
        if reply.code != Code.ATTEMPT_PENDING:
            break
        await asyncio.sleep(_PENDING_SECONDS)
    if reply.code < Code.NOT_FOUND:
        service, diskless = exchange.context.service, exchange.context.settings.object_store
        reply = await inherit_snapshots(service, source, command.name, reply, diskless=diskless)
    if reply.code >= Code.NOT_FOUND:
        fail_reply(exchange, reply, creating=True)
    else:
        await _look_up_and_answer(exchange, reply, command, known)


def _fork_point(headers: dict[str, str]) -> tuple[int, int, int]:
    """Return (record, byte, sub-offset); record -1 is the source's tail."""
    sub_text, offset = headers.get("stream-fork-sub-offset"), headers.get("stream-fork-offset")
    sub_offset = 0 if sub_text is None else parse_sub_offset(sub_text)
    if offset is None:
        if sub_offset:
            raise BadField("Stream-Fork-Sub-Offset needs Stream-Fork-Offset, from which it counts")
        return -1, -1, 0
    if offset == "-1":
        return 0, 0, sub_offset
    if offset == "now":
        if sub_offset:
            raise BadField(
                "nothing lies beyond the tail that Stream-Fork-Offset names: "
                "Stream-Fork-Sub-Offset must be 0"
            )
        return -1, -1, 0
    at = parse_token(offset)
    if at is None:
        raise BadField("Stream-Fork-Offset must be an offset returned by this server")
    return *at, sub_offset


async def _type_of(exchange: Exchange, source: str) -> str | None:
    """Return the content type that a fork inherits; None if the source is missing and the error has
    been sent."""
    info = await exchange.context.service.open(source).info()
    if not isinstance(info, Refusal):
        return info.content_type
    if info.code == Code.GONE:
        exchange.fail("DELETED_IN_USE", "the fork's source was deleted")
    elif info.code == Code.NOT_FOUND:
        fail_reply(exchange, Reply(info.code), creating=True)
    else:
        fail_refusal(exchange, info)
    return None
