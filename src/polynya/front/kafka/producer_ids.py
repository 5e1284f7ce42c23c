"""Producer ids for idempotent producers, in blocks, so that most cost no log entry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from polynya.stream.commands import ProducerIds

if TYPE_CHECKING:
    from polynya.front.kafka.topics import TopicService

BLOCK = 1000
GROUP = 1  # ids name their group, so those of any group are distinct


class ProducerIdBlocks:
    """The ids that one core may still give out."""

    def __init__(self, service: TopicService) -> None:
        self._service = service
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Return an id that no producer has had. Raises what the log raises."""
        async with self._lock:
            if self._next == self._end:
                reply = await self._service.call(GROUP, ProducerIds(BLOCK, self._service.now_ms()))
                self._next = int(reply.detail)
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1
