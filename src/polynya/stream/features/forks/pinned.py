"""The records of a source that forks may need."""

from __future__ import annotations

from polynya.stream.state.model import Stream


def pinned_until(stream: Stream) -> int:
    """Return the end of what forks may need of a stream; 0: nothing."""
    pins = (stream.pins or {}).values()
    return max((pin.record + (pin.prefix > 0) for pin in pins), default=0)
