"""The origin of a published snapshot: that of the clients, or of a reducer."""

from __future__ import annotations

import re

from polynya.access.grants import Verb
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.reducers.routes import no_reducer, revision_differs
from polynya.service.reducers.registry import Bound
from polynya.stream.replies import Code, Reply

ORIGIN = "stream-snapshot-origin"
_FORM = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})@([1-9]\d{0,17})", re.ASCII)


def origin_of_publish(exchange: Exchange) -> tuple[str, int] | None:
    """Return the reducer and the revision that publish; None: a client does. Raises `Failure`."""
    text = exchange.head.headers.get(ORIGIN)
    if text is None:
        return None
    found = _FORM.fullmatch(text)
    if found is None:
        raise Failure(
            "INVALID_HEADER",
            f"Stream-Snapshot-Origin is '{text[:64]}'; it must be REDUCER@REVISION, and is for workers "
            "of reducers: clients leave it out",
        )
    principal = exchange.principal
    if principal is not None and not principal.is_admin:
        raise Failure(
            "FORBIDDEN",
            f"the token does not allow '{Verb.ADMIN}', which the snapshots of a reducer need",
        )
    return found[1], int(found[2])


async def publishing(exchange: Exchange, origin: tuple[str, int]) -> Bound:
    """Return the reducer that may publish now. Raises `Failure`, Unavailable."""
    name, revision = origin
    reducers = exchange.context.service.reducers
    await reducers.refresh()
    bound = reducers.known.get(name)
    if bound is None or bound.binding.revision != revision:
        bound = (await reducers.current()).get(name)
    if bound is None:
        raise no_reducer(name)
    if bound.binding.revision != revision:
        raise revision_differs(bound, revision)
    if bound.binding.stopped:
        raise Failure("REDUCER_STOPPED", f"the reducer is stopped: {bound.binding.stopped}")
    if not bound.fits(exchange.route.name):
        raise Failure(
            "REDUCER_REVISION", f"the pattern of the reducer '{name}' does not fit the stream"
        )
    return bound


async def note_outcome(
    exchange: Exchange, bound: Bound, reply: Reply, published: tuple[int, int]
) -> None:
    """Stop a reducer that has published another state of the same records, and forget its fault on
    the stream after a publish. `published`: the record, and the bytes of the state. Raises
    Unavailable."""
    reducers, stream = exchange.context.service.reducers, exchange.route.name
    record, size = published
    if reply.code == Code.CREATED:
        reducers.counts.publishes += 1
        reducers.counts.publish_bytes += size
    if reply.code == Code.SNAPSHOT_CONFLICT:
        await reducers.stop(
            bound.name,
            bound.binding.revision,
            f"nondeterministic: of {exchange.route.path.partition('/snapshot')[0]} it computed two "
            f"states after the records before {record}",
        )
    elif reply.code < Code.NOT_FOUND and (bound.name, stream) in reducers.faults:
        await reducers.set_fault(bound.name, stream, None)
