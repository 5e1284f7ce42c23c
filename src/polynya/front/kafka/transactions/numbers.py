"""The number of an open transaction, from what is known or from the coordinator: a batch or an offset
of a transaction has its number, and goes only to streams and groups that were added to it.

A number may be stale: then the stream refuses it (TXN_ENDED), and the core asks again.
"""

from __future__ import annotations

from collections.abc import Iterable

from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.transactions.connection_ages import use_of
from polynya.front.kafka.transactions.known import Key, KnownTransaction
from polynya.front.kafka.transactions.refusals import NotAnswered, patiently
from polynya.local.api import StreamInfo
from polynya.routing.handle import StreamHandle

_NEW_PROTOCOL = 2


def known_now(call: Call, key: Key, handles: Iterable[StreamHandle]) -> KnownTransaction | None:
    """Return the transaction if it is known to have these streams, without a question."""
    numbers = call.context.numbers
    known = numbers.find(key)
    if known is None:
        return None
    for handle in handles:
        if handle.name not in known.streams:
            return None
        if handle.ended_number(key[1]) >= known.number:
            numbers.forget(key)
            return None
    return known


async def number_of_streams(
    call: Call, key: Key, handles: Iterable[StreamHandle], *, is_new: bool
) -> KnownTransaction:
    """Return the transaction of a producer. `is_new`: the protocol in which a batch adds its
    partition; else the client has added it. Raises NotAnswered."""
    handles = list(handles)
    known = known_now(call, key, handles)
    if known is not None:
        return known
    if not is_new:
        return await _ask(call, key, handles)
    streams = await added_streams(handles)
    return await add(call, key, streams, [], version=_NEW_PROTOCOL)


async def number_of_group(call: Call, key: Key, group: str, *, is_new: bool) -> KnownTransaction:
    """Return the transaction of a producer, which has this consumer group. Raises NotAnswered."""
    known = call.context.numbers.find(key)
    if known is not None and group in known.groups:
        return known
    if is_new:
        return await add(call, key, [], [group], version=_NEW_PROTOCOL)
    known = await _ask(call, key, [])
    if group not in known.groups:
        raise NotAnswered(Error.INVALID_TXN_STATE)
    return known


async def added_streams(handles: Iterable[StreamHandle]) -> list[tuple[int, int, str]]:
    """Return streams as participants: (group, uid, name). Raises NotAnswered."""
    found = []
    for handle in handles:
        try:
            info = handle.info_nowait() or await handle.info()
        except PolynyaError:
            raise NotAnswered(Error.COORDINATOR_NOT_AVAILABLE) from None
        if not isinstance(info, StreamInfo):
            raise NotAnswered(Error.UNKNOWN_TOPIC_OR_PARTITION)
        found.append((handle.group, info.uid, handle.name))
    return found


async def add(
    call: Call, key: Key, streams: list[tuple[int, int, str]], groups: list[str], *, version: int
) -> KnownTransaction:
    """Add participants, and begin the transaction if none is open. Raises NotAnswered."""
    id_, *pair = key
    context = call.context
    # in the newer protocol any broker adds, and the next transaction has another epoch
    use = use_of(call, key) if version < _NEW_PROTOCOL else None

    async def ask() -> int:
        return await context.transactions.add(
            id_, (pair[0], pair[1]), streams, groups, version=version, use=use
        )

    number = await patiently(call, id_, ask)
    return context.numbers.note(key, number, {name: uid for _, uid, name in streams}, groups)


async def _ask(call: Call, key: Key, handles: list[StreamHandle]) -> KnownTransaction:
    """Ask the coordinator for the transaction that the client has begun."""
    id_, *pair = key
    context = call.context
    streams = {name: uid for _, uid, name in await added_streams(handles)}
    answer = await patiently(
        call, id_, lambda: context.transactions.participants(id_, (pair[0], pair[1]))
    )
    number, uids, groups = answer
    if not set(streams.values()) <= set(uids):
        raise NotAnswered(Error.INVALID_TXN_STATE)
    return context.numbers.note(key, number, streams, groups)
