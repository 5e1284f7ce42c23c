"""Commands of leased streams: tag 10."""

from __future__ import annotations

from polynya.stream.command import Command


class Rollover(Command, tag=10, frozen=True, gc=False):
    """Close the open segment of a leased stream, which has this epoch, and open the next one for a
    writer. Detail: epoch and writer of the segment that is open afterwards. Level 3."""

    name: str
    uid: int
    epoch: int  # of the segment to close; refused if another one is open
    writer: int  # the node that leads the group while it appends
    now_ms: int
