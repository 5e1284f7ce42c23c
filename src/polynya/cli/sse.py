"""Server-sent events of a body that is being read: the client's parser over an iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polynya.client.events import Event, EventParser


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events in a body's bytes. One that the end cuts off is dropped. Raises ValueError for one that is too large."""
    parser = EventParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


__all__ = ["Event", "events"]
