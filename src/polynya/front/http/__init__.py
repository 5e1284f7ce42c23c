"""HTTP/1.1: the Durable Streams Protocol, on its own spelling of names and on Ursula's.

`server.HttpFront` owns the listening sockets, the connections and one timer. `connection.Connection` turns bytes into `Exchange`s and
writes their answers in order; `routing` says what a path means; `routes` has one module for each verb. An append costs no task and no
future: it is parsed, checked, proposed with a callback, and the callback writes the answer; uvloop joins the writes of one pass of the
loop. Whatever waits (a cold page, a long-poll, a fork) is a task of its exchange.

Invariants:

* Answers leave in the order of their requests. Appends of one connection may be in flight together; everything else waits until the
  connection is quiet, so that pipelined requests see what those before them did.
* Every refusal has one shape (`errors`), and says whether anything was applied.
* What a connection holds is bounded: one head, one body, 64 requests, 1 MiB of unsent events.
"""
