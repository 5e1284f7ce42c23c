"""HTTP/2: each stream is a virtual connection of HTTP/1.1.

`connection.Http2Connection` owns the transport and the protocol's state, which is that of the library
`h2`. For each stream it makes a `connection.Connection` of HTTP/1.1 on a `virtual.VirtualTransport`:
its request head is written from the validated header list (`wire.http.http2_heads`), its response is
split into HEADERS and DATA (`wire.http.response_parts`). So all routes, limits and timeouts are those
of HTTP/1.1, and a stream counts as a connection wherever connections count.

Invariants:

* A virtual connection takes one request, and ends with its response.
* Streams send in turns, one frame each. A stream without a window waits aside, and holds no other.
* The bytes on their way are bounded in both directions, for a stream and for its connection.
* DATA is framed here and not by the library, which would cost a live event several times its price.
* The library is imported with the first connection that speaks HTTP/2.
"""
