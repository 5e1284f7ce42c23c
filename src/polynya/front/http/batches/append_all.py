"""POST /v1/append-all: appends to several streams, all or nothing."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from polynya.base.levels import ATOMIC_LEVEL
from polynya.base.limits import MIB
from polynya.base.offsets import format_token
from polynya.front.http.batches.lines import (
    Item,
    check_right,
    command_of,
    read_items,
    why_refused,
)
from polynya.front.http.protocol.errors import ERRORS, Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.routing.proposals import reply_to
from polynya.stream.features.appends.commands import BUNDLE_COMMANDS_MAX, AppendAll
from polynya.stream.replies import Code, Reply

_JSON = ("Content-Type", "application/json")
_NO_STORE = ("Cache-Control", "no-store")
BYTES_MAX = 1 * MIB  # of all records: one log entry has them


class _Appended(msgspec.Struct, omit_defaults=True):
    """The outcome of a line of a request that was applied."""

    next_offset: str
    incarnation: str
    closed: bool = False


def append_all(exchange: Exchange) -> None:
    """Handle POST. Raises `Failure`."""
    refuse_conditions(exchange)
    if exchange.context.service.level < ATOMIC_LEVEL:
        raise Failure("UPGRADE_PENDING")
    exchange.peer.responses.exclusive = True
    exchange.spawn(_append(exchange))


async def _append(exchange: Exchange) -> None:
    items = await read_items(exchange, BUNDLE_COMMANDS_MAX, conditions=True)
    for number, item in enumerate(items):
        if item.failure is not None:
            _refuse(exchange, number, item, item.failure.code, item.failure.message)
            return
        check_right(exchange.principal, item.name)
    _check_together(exchange, items)
    counters, since = exchange.context.counters, perf_counter()
    counters.appends += len(items)
    counters.bytes_in += sum(_size(item) for item in items)
    reply = await _applied(exchange, items)
    counters.append_seconds.observe(perf_counter() - since)
    _answer(exchange, items, reply)


async def _applied(exchange: Exchange, items: list[Item]) -> Reply:
    """Append to streams of one group by one command, and to others in a transaction."""
    parts = [command_of(exchange, item) for item in items]
    service, across = exchange.context.service, exchange.context.across
    if len({service.group_of(item.name) for item in items}) > 1:
        assert across is not None
        return await across.append(parts)
    return await reply_to(partial(service.open(items[0].name).propose, AppendAll(parts)))


def _size(item: Item) -> int:
    return 0 if item.batch is None else len(item.batch.payload)


def _check_together(exchange: Exchange, items: list[Item]) -> None:
    """Raise `Failure` for appends that no log entry can have together."""
    names = set()
    for number, item in enumerate(items, 1):
        if item.name in names:
            raise Failure(
                "INVALID_REQUEST",
                f"append {number} is the second one to '{item.line.stream}': each stream has one, "
                "with all of its records; nothing was appended",
            )
        names.add(item.name)
    size = sum(_size(item) for item in items)
    if size > BYTES_MAX:
        raise Failure(
            "BODY_TOO_LARGE",
            f"the records have {size:,} bytes together; all or nothing takes at most {BYTES_MAX:,}",
        )
    service = exchange.context.service
    group = service.group_of(items[0].name)
    other = next((item for item in items if service.group_of(item.name) != group), None)
    if other is None:
        return
    for item in items:
        reason = _only_in_one_group(exchange, item)
        if reason:
            raise Failure(
                "CROSS_GROUP",
                f"{reason}: '{items[0].line.stream}' is of group {group}, and "
                f"'{other.line.stream}' of group {service.group_of(other.name)}. Streams whose names "
                "have the same part in braces are of one group, such as {o7}/order and {o7}/stock; "
                "nothing was appended",
            )


def _only_in_one_group(exchange: Exchange, item: Item) -> str:
    """Return why an append needs that all streams are of one group, or ""."""
    if exchange.context.across is None:
        return "this port takes only streams of one group"
    if item.line.close:
        return f"'close' of '{item.line.stream}' cannot be taken back: close it afterwards"
    if item.line.stream_seq is not None:
        return f"'stream_seq' of '{item.line.stream}' cannot be taken back: use a producer"
    return ""


def _answer(exchange: Exchange, items: list[Item], reply: Reply) -> None:
    if reply.code in (Code.OK, Code.DUPLICATE):
        outcomes = [
            _Appended(format_token(record, byte), str(uid or ""), closed)
            for uid, record, byte, closed in reply.detail
        ]
        exchange.answer(200, [_JSON, _NO_STORE], msgspec.json.encode(outcomes))
    elif reply.code == Code.NONE_APPENDED:
        number, found = reply.detail
        refused, item = msgspec.convert(found, Reply), items[number]
        code, message, next_offset = _why(exchange, item, refused)
        _refuse(exchange, number, item, code, message, next_offset)
    else:  # of the whole, such as a full disk
        code, message, _ = why_refused(exchange, items[0], reply)
        exchange.fail(code, message)


def _why(exchange: Exchange, item: Item, reply: Reply) -> tuple[str, str, str]:
    name = item.line.stream
    if reply.code == Code.DUPLICATE:
        message = f"the producer's sequence was appended to '{name}' before, without the others"
        return "PRODUCER_CONFLICT", message, ""
    if reply.code == Code.WRONG_PROFILE:
        message = f"'{name}' is diskless or leased: only replicated streams are appended together"
        return "PROFILE_CONFLICT", message, ""
    return why_refused(exchange, item, reply)


def _refuse(  # noqa: PLR0913 - of one error
    exchange: Exchange, number: int, item: Item, code: str, message: str, next_offset: str = ""
) -> None:
    """Respond with the refusal of one append, because of which none was applied."""
    error = ERRORS[code]
    text = f"nothing was appended: append {number + 1}, to '{item.line.stream}': "
    answer: dict[str, Any] = {
        "code": "NONE_APPENDED",
        "item": number,
        "reason": code,
        "message": text + (message or error.message),
    }
    if next_offset:
        answer["next_offset"] = next_offset
    headers = [_JSON, _NO_STORE, ("Stream-Outcome", error.outcome)]
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    body = exchange.complete_error(msgspec.json.encode({"error": answer}))
    exchange.answer(error.status, headers, body)
