"""Whether the other end of a connection between nodes is still there: it is asked, and something has to come."""

from __future__ import annotations

from polynya.transport.link import Link, Type

# So long without a byte, and without taking one, and it is gone, whatever the kernel says. A write that waits for its answer then costs, with the
# election that follows, less than two seconds; and a process that stands still for less is not missed.
SILENCE_SECONDS = 1.0
TICK_SECONDS_MAX = 0.5  # a tick that comes later says that this process stood still: then nothing is known about others


class Pulse:
    """Of one connection after the other. Call `beat` a few times a second."""

    __slots__ = ("_beaten", "_unsent", "heard")

    def __init__(self) -> None:
        self.heard = self._beaten = 0.0  # the loop's time
        self._unsent = 0

    def begin(self, now: float) -> None:
        self.heard = self._beaten = now
        self._unsent = 0

    def beat(self, link: Link, now: float) -> None:
        """Asks, and closes a link that has been silent for too long."""
        unsent = link.transport.get_write_buffer_size()
        if not link.quiet or unsent < self._unsent or now - self._beaten > TICK_SECONDS_MAX:
            self.heard = now
        self._beaten, self._unsent = now, unsent
        if now - self.heard > SILENCE_SECONDS:
            link.close()
        else:
            link.quiet = True
            link.send(Type.PING, 0, 0, b"")
