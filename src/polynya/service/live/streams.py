"""The parts that readers of many streams share on a core."""

from __future__ import annotations

from polynya.service.live.cursors import LiveCursors
from polynya.service.live.new_streams import NewStreams
from polynya.service.live.parked import ParkedReaders
from polynya.service.node_service import NodeService


class LiveStreams:
    """The watch over new streams, the cursors and the parked readers of one core."""

    def __init__(self, service: NodeService) -> None:
        self.new_streams = NewStreams(service)
        self.cursors = LiveCursors(service)
        self.parked = ParkedReaders()
        self.followed = 0  # streams that all readers of this core follow, parked ones too
