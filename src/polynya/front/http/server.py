"""HTTP front of one core: its listeners, its connections and its timer."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from polynya.front.http.connection import Connection
from polynya.front.http.http2.switch import Http2Switch
from polynya.front.http.protocol.exchange import Context, Protection
from polynya.front.http.protocol.extension import Handler
from polynya.front.http.protocol.router import Router
from polynya.front.http.protocol.settings import HttpSettings
from polynya.service.api import Service
from polynya.service.live import LiveStreams


class HttpFront:
    """The HTTP server of one core. `handlers` maps an exact path to its handler, `mounts` a path
    prefix with a final slash. Both take precedence over streams. `streams` False omits the stream
    routes, for ports with other content. `live` serves readers of many streams."""

    def __init__(
        self,
        service: Service,
        settings: HttpSettings | None = None,
        handlers: Mapping[str, Handler] | None = None,
        mounts: Mapping[str, Handler] | None = None,
        *,
        streams: bool = True,
        protection: Protection | None = None,
        live: LiveStreams | None = None,
    ) -> None:
        router = Router(handlers or {}, mounts or {}, streams=streams)
        self.context = Context(
            service, settings or HttpSettings(), router, protection or Protection()
        )
        self.context.readers.many = live
        self.context.http2 = Http2Switch(self.context) if self.context.settings.http2 else None
        self.counters = self.context.counters
        self.connections = self.context.connections
        self.readers = self.context.readers

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on listening sockets; `stop` closes them."""
        await self.connections.listen(
            sockets,
            lambda: Connection(self.context),
            self.context.protection.tls,
            handshakes_max=self.context.handshakes_max,
            dropped=self.counters.refuse_handshake,
        )
        self.connections.sweep_with(self.sweep)

    async def stop(self, grace: float = 5.0) -> None:
        """Stop accepting connections and requests. After `grace` seconds, abort the responses in
        flight."""
        self.connections.close()
        self.readers.stop()
        for connection in self.connections:
            connection.stop()
        await self.connections.drain(grace)
        self.readers.tail_confirmation.close()
        await self.connections.end()

    def sweep(self, tick: int) -> None:
        """Enforce all timeouts at the coarse second `tick`."""
        self.context.ticks.now = tick
        self.context.memory.measure()
        for connection in self.connections:
            connection.sweep(tick)
        self.readers.sweep(tick)

    def let_go(self) -> None:
        """End the work of revoked principals. Their next request is authorized again."""
        for connection in self.connections:
            principal = connection.peer.principal
            if principal is not None and not principal.alive:
                connection.peer.forget_template()
        self.readers.let_go()
