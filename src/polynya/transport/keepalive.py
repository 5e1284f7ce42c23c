"""Whether the other end of a connection between nodes is still there: it is asked, and something has to come."""

from __future__ import annotations

from polynya.base.limits import KIB
from polynya.transport.link import FrameLink, FrameType

# So long without a byte, and without taking one, and it is gone, whatever the kernel says. A write that waits for its answer then costs, with the
# election that follows, less than two seconds; and a process that stands still for less is not missed.
SILENCE_SECONDS = 1.0
TICK_SECONDS_MAX = 0.5  # a tick that comes later says that this process stood still: then nothing is known about others

# What is small arrives at once, and a kernel takes it for a process that stands still. A link on which more than that waits is busy, and its other
# end there, while so much moves from tick to tick: 1 Mbit/s. What is slower counts as silence, as somebody with better links may do better.
BUSY_BYTES = 64 * KIB
MOVED_BYTES = 32 * KIB


class Keepalive:
    """Of one connection after the other. Call `beat` a few times a second."""

    __slots__ = ("_beaten", "_taken", "_unsent", "heard", "taking")

    def __init__(self) -> None:
        self.heard = self._beaten = 0.0  # the loop's time
        self.taking = False  # at the last beat: much is on its way, and moves, and the answer to what was asked is behind it
        self._taken = self._unsent = 0

    def begin(self, now: float) -> None:
        self.heard = self._beaten = now
        self.taking = False
        self._taken = self._unsent = 0

    def beat(self, link: FrameLink, now: float, synced: int = 0) -> None:
        """Asks, and closes a link that has been silent for too long. `synced`: how far this core's journal is."""
        unsent = link.unsent
        taken = link.handed - unsent
        moved, busy = taken - self._taken, self._unsent >= BUSY_BYTES
        self.taking = moved >= MOVED_BYTES and (busy or unsent >= BUSY_BYTES)
        if not link.quiet or (moved > 0 and busy) or now - self._beaten > TICK_SECONDS_MAX:
            self.heard = now
        self._beaten, self._taken, self._unsent = now, taken, unsent
        if now - self.heard > SILENCE_SECONDS:
            link.close()
        else:
            link.quiet = True
            link.send(FrameType.PING, 0, synced, b"")
