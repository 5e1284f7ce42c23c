"""The Kafka protocol on a port of its own. Record batches stay opaque from the socket to the log.

`server` owns the connections, `connection` turns bytes into requests and sends answers in order,
`dispatch` finds the handler of a request. The other modules are the handlers.
"""
