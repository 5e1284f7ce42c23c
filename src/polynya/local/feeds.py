"""Deliver each applied append to the live readers of the streams of one core."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter

from polynya.base.histogram import Histogram
from polynya.local.api import LiveEvent, Sink
from polynya.stream.state.effects import TailMoved

log = logging.getLogger("polynya.service")


class Feeds:
    """The sinks of each uid. A stream without live readers costs nothing."""

    __slots__ = ("seconds", "sinks")

    def __init__(self, seconds: Histogram | None = None) -> None:
        self.sinks: dict[int, dict[Sink, None]] = {}
        # until an event is handed to all its sinks, and written by those that write at once
        self.seconds = Histogram() if seconds is None else seconds

    def __len__(self) -> int:
        return sum(map(len, self.sinks.values()))

    def uids(self) -> tuple[int, ...]:
        """Return the uids of the streams with live readers."""
        return tuple(self.sinks)

    def watched(self, uid: int) -> bool:
        return uid in self.sinks

    def attach(self, uid: int, sink: Sink) -> None:
        self.sinks.setdefault(uid, {})[sink] = None

    def detach(self, uid: int, sink: Sink) -> None:
        sinks = self.sinks.get(uid)
        if sinks is not None:
            sinks.pop(sink, None)
            if not sinks:
                del self.sinks[uid]

    def moved(self, effects: Iterable[TailMoved], *, known: bool) -> None:
        """Publish the effects of applied commands, before their writers get the replies. `known`:
        no later record is acknowledged on any node."""
        for effect in effects:
            if effect.gone:
                self.end(effect.uid, effect.record, effect.byte)
            elif effect.uid in self.sinks:
                self._publish(_event_of(effect, known=known))

    def end(self, uid: int, record: int, byte: int) -> None:
        """Send the sinks of a deleted or expired stream their last event, and detach them."""
        if uid in self.sinks:
            self._publish(LiveEvent(uid, record, byte, record, byte, 0, b"", gone=True))
            self.sinks.pop(uid, None)

    def cut(self, uid: int) -> None:
        """Make the sinks end their responses after a broken feed, so that the clients resume."""
        if uid in self.sinks:
            self._publish(LiveEvent(uid, 0, 0, 0, 0, 0, b"", cut=True))
            self.sinks.pop(uid, None)

    def publish(self, event: LiveEvent) -> None:
        if event.gone:
            self.end(event.uid, event.record, event.byte)
        elif event.uid in self.sinks:
            self._publish(event)

    def _publish(self, event: LiveEvent) -> None:
        """Send the event to the sinks; an unstable one to those that want uncommitted records."""
        began = perf_counter()
        for sink in tuple(self.sinks[event.uid]):
            if event.unstable and not getattr(sink, "uncommitted", False):
                continue
            try:
                sink.live(event)
            except Exception:  # a faulty reader must not affect other readers or the writer
                log.exception("a live reader failed and was detached")
                self.detach(event.uid, sink)
                with suppress(Exception):  # make it resume: it has missed an event
                    sink.live(LiveEvent(event.uid, 0, 0, 0, 0, 0, b"", cut=True))
        self.seconds.observe(perf_counter() - began)


def _event_of(effect: TailMoved, *, known: bool) -> LiveEvent:
    batch = effect.batch
    return LiveEvent(
        effect.uid,
        effect.begin_record,
        effect.begin_byte,
        effect.record,
        effect.byte,
        0 if batch is None else batch.encoding,
        b"" if batch is None else batch.payload,
        closed=effect.closed,
        known=known or effect.closed,
        unstable=effect.unstable,
        time_ms=effect.time_ms,
        first_record=effect.first_record,
    )
