"""The readers of many streams that wait for the next long-poll of their client."""

from __future__ import annotations

from typing import Protocol

from polynya.base.limits import LIVE_PARKED_MAX, LIVE_PARKED_SECONDS, LIVE_PARKED_STREAMS_MAX


class Parked(Protocol):
    """A reader between two long-polls."""

    def release(self) -> None:
        """Detach from all streams."""
        ...


class ParkedReaders:
    """The parked readers of one core, by the name of their cursor, oldest first. They save the next
    long-poll work, and nothing more: one that is not here begins again."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[Parked, int, int]] = {}  # with its streams, and its end
        self.streams = 0

    def __len__(self) -> int:
        return len(self._readers)

    def put(self, name: str, reader: Parked, streams: int, tick: int) -> None:
        """Park a reader at the coarse second `tick`, and release the oldest ones above the
        limits."""
        self._readers[name] = (reader, streams, tick + LIVE_PARKED_SECONDS)
        self.streams += streams
        while len(self._readers) > LIVE_PARKED_MAX or self.streams > LIVE_PARKED_STREAMS_MAX:
            self.drop(next(iter(self._readers)))

    def take(self, name: str) -> Parked | None:
        """Return a reader that is parked no more; None: there is none of this name."""
        reader, streams, _ = self._readers.pop(name, (None, 0, 0))
        self.streams -= streams
        return reader

    def drop(self, name: str) -> None:
        """Release a reader, if it is here."""
        reader = self.take(name)
        if reader is not None:
            reader.release()

    def sweep(self, tick: int) -> None:
        """Release those whose time is over."""
        for name, (_, _, end) in tuple(self._readers.items()):
            if end > tick:
                break
            self.drop(name)

    def clear(self) -> None:
        """Release all."""
        for name in tuple(self._readers):
            self.drop(name)
