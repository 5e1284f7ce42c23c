"""Deliver each applied append to the live readers of the streams of one core."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from polynya.service.api import LiveEvent, Sink
from polynya.stream.commands import Append, Command, Delete, Expire, Produce
from polynya.stream.replies import Code, Reply

log = logging.getLogger("polynya.service")


class Feeds:
    """The sinks of each uid. A stream without live readers costs nothing."""

    __slots__ = ("sinks",)

    def __init__(self) -> None:
        self.sinks: dict[int, dict[Sink, None]] = {}

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

    def applied(self, command: Command, reply: Reply, known: Callable[[], bool] = lambda: True) -> None:
        """Publish an applied command, before its writer gets the reply. `known`: return True if no later record is acknowledged on any
        node."""
        if reply.uid not in self.sinks:
            return
        if isinstance(command, Append | Produce) and reply.code == Code.OK:
            self._publish(_append_event(command, reply, known=known()))
        elif isinstance(command, Delete | Expire) and reply.code == Code.OK:
            self.end(reply.uid, reply.record, reply.byte)

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
        for sink in tuple(self.sinks[event.uid]):
            try:
                sink.live(event)
            except Exception:  # a faulty reader must not affect other readers or the writer
                log.exception("a live reader failed and was detached")
                self.detach(event.uid, sink)
                with suppress(Exception):  # make it resume: it has missed an event
                    sink.live(LiveEvent(event.uid, 0, 0, 0, 0, 0, b"", cut=True))


def _append_event(command: Append | Produce, reply: Reply, *, known: bool) -> LiveEvent:
    batch = command.batch
    known = known or reply.closed
    if batch is None:
        return LiveEvent(reply.uid, reply.record, reply.byte, reply.record, reply.byte, 0, b"", closed=reply.closed, known=known)
    return LiveEvent(
        reply.uid,
        reply.record - batch.records,
        reply.byte - len(batch.payload),
        reply.record,
        reply.byte,
        batch.encoding,
        batch.payload,
        closed=reply.closed,
        known=known,
    )
