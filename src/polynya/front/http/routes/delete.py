"""DELETE: delete the stream. While forks need its data, it is only soft-deleted."""

from __future__ import annotations

from functools import partial

from polynya.base.names import KAFKA_PREFIX
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.refusals import fail_reply
from polynya.local.api import StreamInfo
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import BadField, parse_incarnation


def delete(exchange: Exchange) -> None:
    try:
        incarnation = parse_incarnation(exchange.head.headers.get("stream-incarnation"))
    except BadField as bad:
        exchange.fail("INVALID_HEADER", str(bad))
        return
    if exchange.route.name.startswith(KAFKA_PREFIX):
        exchange.spawn(_delete_unless_partition(exchange, incarnation))
    else:
        _propose(exchange, incarnation)


async def _delete_unless_partition(exchange: Exchange, incarnation: int) -> None:
    info = await exchange.stream.info()
    if isinstance(info, StreamInfo) and info.encoding == Encoding.KAFKA:
        exchange.fail("KAFKA_PARTITION")
    else:
        _propose(exchange, incarnation)


def _propose(exchange: Exchange, incarnation: int) -> None:
    command = Delete(exchange.route.name, exchange.context.service.now_ms(), incarnation)
    exchange.stream.propose(command, partial(_deleted, exchange))


def _deleted(exchange: Exchange, reply: Reply | BaseException) -> None:
    if isinstance(reply, BaseException):
        exchange.fault(reply)
    elif reply.code >= Code.NOT_FOUND:
        fail_reply(exchange, reply)
    else:
        exchange.answer(204, [])
