"""The listeners of a core: each protocol's front at its address, opened, measured and stopped by
one loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from polynya.admin import metric_sources
from polynya.admin.access_keeper import Keeper
from polynya.base.histogram import Histogram
from polynya.base.spans import Tracer
from polynya.config.core_start import KAFKA, TEXT, Address, CoreStart
from polynya.config.model import Config
from polynya.cost import Counts, UsageHistory
from polynya.front.common.client_traffic import ClientTraffic
from polynya.front.http.server import HttpFront
from polynya.front.kafka.configs import NodeProfiles
from polynya.front.kafka.server import KafkaFront
from polynya.front.text.server import TextFront
from polynya.front.text.topics import NodeView
from polynya.observability.metrics import Registry, Samples
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.system.open_files import raise_limit, shares
from polynya.system.ports import shared_listener

ASIDE_PART = 4  # Kafka and the text protocol each may have one in so many of the connections
STOP_SECONDS = 3.0  # an append in flight needs milliseconds; only stalled readers are cut off


def node_profiles(config: Config) -> NodeProfiles:
    """Return the profiles that the settings give to new topics."""
    return NodeProfiles(config.default_profile, config.cold.backend != "none")


class Timed(NamedTuple):
    """A histogram of a front: its metric, and its label `way`, if the metric has that."""

    name: str
    histogram: Histogram
    way: str = ""


class Front(Protocol):
    """The server of one protocol."""

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        ...

    async def stop(self, grace: float) -> None:
        """Finish the requests in flight, for at most `grace` seconds. May come before `start`."""
        ...


class Listener(NamedTuple):
    """A front, with the name of its address in `CoreStart.listeners`."""

    name: str
    front: Front
    samples: tuple[Callable[[], Samples], ...] = ()
    own: tuple[Address, ...] = ()  # the addresses of this core alone
    counts: tuple[Callable[[], Counts], ...] = ()  # kept by the hour, for `polynya cost`
    clients: tuple[ClientTraffic, ...] = ()
    times: tuple[Timed, ...] = ()


class Listeners:
    """The listeners of one core, in the order in which they open."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        addresses: Mapping[str, Address],
        registry: Registry,
        history: UsageHistory,
    ) -> None:
        self._listeners = [((addresses[each.name], *each.own), each.front) for each in listeners]
        self.clients = [each for listener in listeners for each in listener.clients]
        for listener in listeners:
            for samples in listener.samples:
                registry.add(samples)
            for timed in listener.times:
                labels = {"way": timed.way} if timed.way else {}
                registry.add_histogram(timed.name, timed.histogram, **labels)
            for counts in listener.counts:
                history.add(counts)

    def trace(self, tracer: Tracer | None) -> None:
        """Trace the requests of HTTP and Kafka that the tracer samples."""
        for _, front in self._listeners:
            if isinstance(front, (HttpFront, KafkaFront)):
                front.context.tracer = tracer

    async def open(self) -> None:
        """Listen on the ports that the supervisor holds."""
        for endpoints, front in self._listeners:
            await front.start([shared_listener(*address) for address in endpoints])

    async def close(self) -> None:
        """Finish the requests in flight, for at most `STOP_SECONDS`."""
        await asyncio.gather(*(front.stop(STOP_SECONDS) for _, front in self._listeners))


class ConnectionShares(NamedTuple):
    """The maximum client connections of a core at its listeners."""

    base: int
    admin: int
    text: int
    kafka: int


def connection_shares(start: CoreStart) -> ConnectionShares:
    """Return the shares of the open files that this core may use. Raises ConfigError."""
    clients = shares(raise_limit(), cores=start.cores, nodes=len(start.config.cluster.nodes))
    part = clients.base // ASIDE_PART
    text, kafka = (part if name in start.listeners else 0 for name in (TEXT, KAFKA))
    return ConnectionShares(clients.base - text - kafka, clients.admin, text, kafka)


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
