"""The producers that outlive a topic: the names of deleted topics, and the ids of producers.

The meta group has the names, as the scope `kafka-deleted` of its settings: every core of every node
knows them, also after a restart. A producer that ran meanwhile goes on with its sequence in a topic
of the same name; in any other new topic it begins at 0. New partitions know the producers of before
by their ids alone, so no id is kept for later: one log entry gives those of all that ask meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from polynya.base.errors import Unavailable
from polynya.base.limits import DELETED_TOPICS_MAX
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import ProducerIds
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code, Reply

SCOPE = "kafka-deleted"
_ATTEMPTS = 20
IDS_AT_ONCE_MAX = 1000
GROUP = 1  # ids name their group, so those of any group are distinct


class MetaSettings(Protocol):
    """The settings of the meta group."""

    async def entries(self, scope: str) -> dict[str, bytes]: ...

    async def call(self, command: MetaChange) -> Reply: ...


class MetaService(Protocol):
    """The part of the service that this module needs."""

    @property
    def meta_group(self) -> MetaSettings: ...

    def now_ms(self) -> int: ...


class DeletedTopics:
    """The names, as one core knows them. All that wait together are one entry of the log."""

    def __init__(self, service: MetaService) -> None:
        self._service = service
        self._known: dict[str, int] = {}  # the time of each deletion
        self._asked = self._answered = 0  # questions, and those that a read answered
        self._reading = asyncio.Lock()
        self._waiting: dict[str, None] = {}
        self._writing = asyncio.Lock()

    async def has(self, name: str) -> bool:
        """Report whether a topic of this name was deleted before the call. Raises Unavailable.

        Calls that come during a read share the next one."""
        self._asked += 1
        wanted = self._asked
        async with self._reading:
            if self._answered < wanted:
                begun = self._asked
                await self._read()
                self._answered = begun
        return name in self._known

    async def add(self, name: str) -> None:
        """Record the name of a topic that is being deleted; the oldest names make room. Raises
        Unavailable."""
        self._waiting[name] = None
        async with self._writing:
            if name not in self._waiting:
                return  # the one before wrote it
            for _ in range(_ATTEMPTS):
                names = list(self._waiting)
                version = await self._read()
                command = MetaChange(SCOPE, version, self._changes(names))
                if (await self._service.meta_group.call(command)).code == Code.OK:
                    for each in names:
                        self._waiting.pop(each, None)
                    return
        raise Unavailable("concurrent deletions of topics; retry")

    def _changes(self, names: list[str]) -> list[tuple[str, bytes | None]]:
        """Return the entries that are added, and those of the oldest names, which are removed."""
        now = b"%d" % self._service.now_ms()
        others = self._known.keys() - names
        over = len(others) + len(names) - DELETED_TOPICS_MAX
        oldest = sorted(others, key=lambda name: (self._known[name], name))[: max(0, over)]
        return [*((name, now) for name in names), *((name, None) for name in oldest)]

    async def _read(self) -> int:
        """Read the names, and return the number of their last change."""
        meta = await self._service.meta_group.entries(SCOPE)
        self._known = {name: int(value) for name, value in values_of(meta, SCOPE).items()}
        return version_of(meta, SCOPE)


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
                count = min(max(1, self._waiting), IDS_AT_ONCE_MAX)
                self._waiting = max(0, self._waiting - count)
                self._next = await allot(self._service, count)
                self._end = self._next + count
            self._next += 1
            return self._next - 1
