"""HTTP/1.1: the Durable Streams Protocol, with its own URLs and Ursula's.

`server.HttpFront` owns the listening sockets, the connections and one timer.
`connection.Connection` turns bytes into `Exchange`s; the queue of `front.common.pipeline` writes
their responses in order. A handler sees its exchange, and below it the `Context` that all requests
of a front share, the `Peer` at the other end, and the handle of the stream.
`protocol.router` resolves paths, and `routes` has one module for each verb. An append creates no
task and no future: its callback writes the response, and uvloop joins the writes of one loop pass.
Work that may wait (a cold page, a long-poll, a fork) is a task of its exchange.

Invariants:

* Responses leave in the order of their requests. Appends of one connection may be in flight
  together. Any other request waits until the connection is idle, so that it sees the effects of
  earlier ones.
* Every error has one format (`errors`), and says whether anything was applied.
* The memory of a connection is bounded: one head, one body, 64 requests, 1 MiB of unsent events.
"""
