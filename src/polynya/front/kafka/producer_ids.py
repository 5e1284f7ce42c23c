"""Producer ids for idempotent producers. One log entry gives those of all that ask meanwhile.

No id is kept for later: partitions that are created know producers of before by their ids alone.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import ProducerIds
from polynya.stream.replies import Reply

AT_ONCE_MAX = 1000
GROUP = 1  # ids name their group, so those of any group are distinct


class IdService(Protocol):
    """The part of the service that gives ids."""

    def now_ms(self) -> int: ...

    async def call(self, group: int, command: Command) -> Reply: ...


async def allot(service: IdService, count: int) -> int:
    """Return the first of some ids, which are above all that were allotted before."""
    reply = await service.call(GROUP, ProducerIds(count, service.now_ms()))
    return int(reply.detail)


class ProducerIdSource:
    """The ids that one core gives out."""

    def __init__(self, service: IdService) -> None:
        self._service = service
        self._waiting = 0  # callers that the next entry counts
        self._next = self._end = 0
        self._lock = asyncio.Lock()  # callers get it in the order in which they came

    async def take(self) -> int:
        """Return an id that no producer has had. Raises what the log raises."""
        self._waiting += 1
        async with self._lock:
            if self._next == self._end:
                count = min(max(1, self._waiting), AT_ONCE_MAX)
                self._waiting = max(0, self._waiting - count)
                self._next = await allot(self._service, count)
                self._end = self._next + count
            self._next += 1
            return self._next - 1
