"""Liveness of a connection between nodes: send PINGs, and expect data in return."""

from __future__ import annotations

from polynya.base.limits import KIB
from polynya.transport.link import FrameLink, FrameType

# A peer that sends and accepts no byte for this long counts as lost, whatever the kernel reports. A
# write that waits for its answer is then delayed by less than two seconds, election included. A
# shorter pause of a process goes unnoticed.
SILENCE_SECONDS = 1.0
# a later tick means that this process stalled; silence then says nothing about peers
TICK_SECONDS_MAX = 0.5

# Small data arrives at once, and the kernel accepts it even for a stalled process. A link with more
# unsent data is busy. Its peer counts as up while this much moves between ticks (1 Mbit/s). A
# slower link counts as silent, because another node may have better links.
BUSY_BYTES = 64 * KIB
MOVED_BYTES = 32 * KIB


class Keepalive:
    """Keepalive of successive connections. Call `beat` a few times a second."""

    __slots__ = ("_beaten", "_taken", "_unsent", "heard", "moving")

    def __init__(self) -> None:
        self.heard = self._beaten = 0.0  # in the event loop's time
        self.moving = False  # at the last beat, much data was moving ahead of the PING answer
        self._taken = self._unsent = 0

    def begin(self, now: float) -> None:
        self.heard = self._beaten = now
        self.moving = False
        self._taken = self._unsent = 0

    def beat(self, link: FrameLink, now: float, synced: int = 0) -> None:
        """Send a PING, or close a link that has been silent for too long. `synced`: how far this
        core's journal is synced."""
        unsent = link.unsent
        taken = link.handed - unsent
        moved, busy = taken - self._taken, self._unsent >= BUSY_BYTES
        self.moving = moved >= MOVED_BYTES and (busy or unsent >= BUSY_BYTES)
        if not link.quiet or (moved > 0 and busy) or now - self._beaten > TICK_SECONDS_MAX:
            self.heard = now
        self._beaten, self._taken, self._unsent = now, taken, unsent
        if now - self.heard > SILENCE_SECONDS:
            link.close()
        else:
            link.quiet = True
            link.send(FrameType.PING, 0, synced, b"")
