"""The refusal of requests that come late, on a connection that its client has replaced."""

from __future__ import annotations

from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.transactions.known import Key
from polynya.front.kafka.transactions.refusals import NotAnswered, error_of_coordinator
from polynya.service.transactions.calls import ConnectionUse


def use_of(call: Call, key: Key, came: float = 0.0) -> ConnectionUse:
    """Return the request as its coordinator judges it, right before it is proposed. `came`: its time,
    if it fences all former instances."""
    id_, *pair = key
    context = call.context
    group = context.transactions.group_of(id_)
    return context.transaction_parts.connections.use(
        group, id_, (pair[0], pair[1]), call.session.opened, came
    )


async def judge_connection(call: Call, key: Key) -> None:
    """Refuse a request of the present epoch on a connection that is older than the newest one of the
    transactional id, and close it. Raises NotAnswered."""
    admitted = await _is_admitted(call, key)
    if admitted is None:
        raise NotAnswered(Error.NOT_COORDINATOR)
    if not admitted:
        call.connection.complain(_CLOSED)
        call.connection.stop()
        raise NotAnswered(Error.NOT_COORDINATOR)


async def note_connection(call: Call, id_: str) -> None:
    """Note the connection of a new instance: those before it are not the newest any more."""
    await _is_admitted(call, (id_, -1, -1))


async def _is_admitted(call: Call, key: Key) -> bool | None:
    id_, *pair = key
    context = call.context
    group = context.transactions.group_of(id_)
    opened = call.session.opened
    try:
        return await context.transaction_parts.connections.admit(
            group, id_, (pair[0], pair[1]), opened
        )
    except PolynyaError as fault:
        raise NotAnswered(error_of_coordinator(fault)) from None


_CLOSED = "closed a Kafka connection: a newer one of its transactional id was used, or a term ended"
