"""The listener of the text protocol."""

from __future__ import annotations

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.admin.listeners import Listener
from polynya.config.core_start import TEXT, CoreStart
from polynya.front.text.server import TextFront
from polynya.front.text.topics import NodeView
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.placement.cluster_map import META_GROUP


def text_listeners(
    start: CoreStart, engine: CoreRuntime, keeper: Keeper, *, connections_max: int
) -> list[Listener]:
    """Return the listener of the text protocol, or none where it is off. It has the access control
    and TLS of the base port."""
    if TEXT not in start.listeners:
        return []
    node, service = start.identity.node or 1, engine.service
    view = NodeView(
        node,
        leader_of=lambda name: service.directory.leader(service.group_of(name)),
        leader=lambda: service.directory.leader(META_GROUP),
        nodes=lambda: sorted({node, *service.directory.voters_of(META_GROUP)}),
        segments=engine.segments.find,
        profile=start.config.text_profile,
    )
    front = TextFront(
        service,
        view,
        connections_max=connections_max,
        access=keeper.known if start.config.text_needs_token else None,
        cores=start.cores,
        tls=keeper.tls_context,
    )
    return [Listener(TEXT, front, (metric_sources.of_text(front),))]
