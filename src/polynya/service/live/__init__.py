"""Readers of many streams: which streams are new, and where readers stopped.

`NewStreams` tells the readers of this core about streams created anywhere in the cluster.
`LiveCursors` keeps the positions of readers whose connection ended, and finds those that other
cores keep. `ParkedReaders` has the readers whose client is about to poll again. None has durable
state."""

from polynya.service.live.streams import LiveStreams

__all__ = ["LiveStreams"]
