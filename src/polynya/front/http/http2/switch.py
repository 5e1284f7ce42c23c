"""The choice of HTTP/2 for a connection: by the handshake of TLS (ALPN), or by the first bytes of a
connection without TLS from this machine."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

from polynya.front.http.protocol.exchange import Context

ALPN = "h2"


class Http2Switch:
    """Gives connections of one front to HTTP/2."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def is_negotiated(self, transport: asyncio.Transport) -> bool:
        """Report whether the handshake chose HTTP/2."""
        tls = transport.get_extra_info("ssl_object")
        return tls is not None and tls.selected_alpn_protocol() == ALPN

    def may_begin(self, transport: asyncio.Transport) -> bool:
        """Report whether a connection may begin with HTTP/2 unasked (RFC 9113 3.3): one without
        TLS, from this machine. Elsewhere a proxy in between may read other requests out of it."""
        address = transport.get_extra_info("peername")
        is_near = (
            isinstance(address, tuple) and ip_address(address[0].partition("%")[0]).is_loopback
        )
        return is_near and self._context.protection.tls is None

    def take(self, transport: asyncio.Transport, data: bytes) -> None:
        """Serve a connection from here on; `data` is all that it has sent."""
        # the first connection of a core loads the library
        from polynya.front.http.http2.connection import Http2Connection

        connection = Http2Connection(self._context)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if data:
            connection.data_received(data)
