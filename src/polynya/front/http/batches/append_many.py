"""POST /v1/append: appends to many streams in one request, each with an outcome of its own."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import perf_counter

import msgspec

from polynya.base.limits import APPENDS_PER_REQUEST_MAX
from polynya.base.offsets import format_token
from polynya.front.http.batches.lines import Item, check_right, command_of, read_items, why_refused
from polynya.front.http.protocol.errors import ERRORS, REFUSED, Failure, expected_failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.routing.proposals import reply_to
from polynya.stream.features.appends.commands import Append
from polynya.stream.replies import Code, Reply

log = logging.getLogger("polynya.http")

_JSON = "application/json"


class _Outcome(msgspec.Struct, omit_defaults=True):
    """The outcome of a line: that of the same append alone."""

    status: int
    next_offset: str = ""
    incarnation: str = ""
    closed: bool = False
    code: str = ""
    message: str = ""
    retry_after: int | None = None
    is_unknown: bool = msgspec.field(default=False, name="unknown")


def append_many(exchange: Exchange) -> None:
    """Handle POST. Raises `Failure`."""
    refuse_conditions(exchange)
    exchange.peer.responses.exclusive = True
    exchange.spawn(_append(exchange))


async def _append(exchange: Exchange) -> None:
    items = await read_items(exchange, APPENDS_PER_REQUEST_MAX)
    by_stream: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        by_stream.setdefault(item.name, []).append(number)
    outcomes: list[_Outcome | None] = [None] * len(items)

    async def in_order(numbers: list[int]) -> None:
        for number in numbers:
            outcomes[number] = await _outcome(exchange, items[number])

    async with asyncio.TaskGroup() as tasks:
        for numbers in by_stream.values():
            tasks.create_task(in_order(numbers))
    headers = [("Content-Type", _JSON), ("Cache-Control", "no-store")]
    exchange.answer(200, headers, msgspec.json.encode(outcomes))


# --- appending ------------------------------------------------------------------------------------


async def _outcome(exchange: Exchange, item: Item) -> _Outcome:
    """Append, and return what came of it."""
    try:
        if item.failure is not None:
            raise item.failure
        check_right(exchange.principal, item.name)
        command = command_of(exchange, item)
        reply = await _proposed(exchange, item, command)
    except Exception as error:  # noqa: BLE001 (the other lines have outcomes; what is unexpected is logged)
        failure = expected_failure(error)
        if failure is None:
            log.error("append failed", exc_info=error, extra={"stream": item.name})
            failure = Failure("INTERNAL")
        return _refused(failure.code, failure.message)
    item.batch = None
    if reply.code >= Code.NOT_FOUND:
        code, message, next_offset = why_refused(exchange, item, reply)
        outcome = _refused(code, message)
        outcome.next_offset = next_offset
        return outcome
    is_new = item.line.producer is not None and not reply.code and "content-type" in item.asked
    offset = format_token(reply.record, reply.byte)
    return _Outcome(200 if is_new else 204, offset, str(reply.uid or ""), reply.closed)


async def _proposed(exchange: Exchange, item: Item, command: Append) -> Reply:
    counters, since = exchange.context.counters, perf_counter()
    counters.appends += 1
    counters.bytes_in += 0 if item.batch is None else len(item.batch.payload)
    reply = await reply_to(partial(exchange.context.service.open(item.name).append, command))
    counters.append_seconds.observe(perf_counter() - since)
    return reply


def _refused(code: str, message: str) -> _Outcome:
    error = ERRORS[code]
    return _Outcome(
        error.status,
        code=code,
        message=message or error.message,
        retry_after=error.retry_after,
        is_unknown=error.outcome != REFUSED,
    )
