"""The one interface between the fronts and the streams: route, admit, propose, wait, read, tail.

A call names a stream. The service finds the stream's group and the core that hosts it, which may be
another process. Local, in-memory state is served synchronously (`…_nowait`, callbacks); only calls
that may block are async.
"""
