"""The streams of one core by name: lookups, lists, and live readers."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Protocol

from polynya.base.names import group_of
from polynya.local.api import Refusal, Sink, StreamInfo, info_of
from polynya.local.feeds import Feeds
from polynya.local.lifetimes.lifecycle import StreamLifecycle
from polynya.local.lifetimes.ttl import Lifetimes
from polynya.local.name_index import SortedNames
from polynya.stream.features.pages.eviction import evicted_view
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream

LIST_STEP = 256  # names per loop pass


class Groups(Protocol):
    """The interface of the local groups that this module needs."""

    machines: dict[int, Machine]
    feeds: Feeds
    lifetimes: Lifetimes
    lifecycle: StreamLifecycle

    def here(self, group: int) -> Machine: ...

    def readable(self, group: int) -> bool: ...


class LocalStreams:
    """Finds the live streams of one core. `groups`: the number of groups that names map to.
    `history`: see `StreamInfo`."""

    def __init__(self, local: Groups, names: SortedNames, *, groups: int, history: int) -> None:
        self._local = local
        self._machines = local.machines
        self._names = names
        self._groups = groups
        self._history = history
        self._feeds = local.feeds
        self._lifetimes = local.lifetimes
        self._is_over = local.lifecycle.is_over

    def find(self, group: int, name: str) -> Stream | Refusal:
        """Return the live stream, or why it cannot be found; for an evicted one its
        `eviction.evicted_view`. Raises Unavailable when the group has left."""
        machine = self._machines.get(group) or self._local.here(group)
        stream = machine.directory.streams.get(name)
        if stream is None:
            return evicted_view(machine, name) or _NOT_FOUND
        if stream.deleted:
            return _GONE
        if (stream.ttl_seconds is not None or stream.expires_at_ms is not None) and self._is_over(
            machine, group, stream
        ):
            return _NOT_FOUND
        return stream

    def info(
        self, group: int, name: str, *, local: bool = False, attributes: bool = True
    ) -> StreamInfo | Refusal:
        """Return the facts of a stream. `local`: the state may lack acknowledged records."""
        stream = self.find(group, name)
        if not isinstance(stream, Stream):
            return stream
        known = not local or self._local.readable(group)
        return info_of(stream, self._history, known=known, attributes=attributes)

    async def list_streams(
        self,
        prefix: str,
        after: str,
        limit: int,
        groups: Container[int],
        *,
        attributes: bool = False,
    ) -> list[StreamInfo]:
        """Return up to `limit` live streams of these groups by name, after `after`, under `prefix`.
        A stream that lives throughout is always included. Raises Unavailable when one of the groups
        has left."""
        info: list[StreamInfo] = []
        while len(info) < limit:
            wanted = min(limit - len(info), LIST_STEP)
            names = self._names.page(prefix, after, wanted)
            for name in names:  # an expired stream may still be listed
                group = group_of(name, self._groups)
                if group not in groups:
                    continue
                entry = self.info(group, name, attributes=attributes)
                if isinstance(entry, StreamInfo):
                    info.append(entry)
            if len(names) < wanted:
                break
            after = names[-1]
            await asyncio.sleep(0)
        return info

    # --- live -------------------------------------------------------------------------------------

    def attach(
        self, group: int, name: str, sink: Sink, *, local: bool = False
    ) -> StreamInfo | Refusal:
        """Deliver every event after the returned tail to `sink`. `local`: as in `info`."""
        stream = self.find(group, name)
        if not isinstance(stream, Stream):
            return stream
        self._lifetimes.touch(group, stream)
        self._feeds.attach(stream.uid, sink)
        return info_of(stream, self._history, known=not local or self._local.readable(group))

    def detach(self, uid: int, sink: Sink) -> None:
        """Deliver no more events to `sink`."""
        self._feeds.detach(uid, sink)
        machine = self._machines.get(uid >> 48)
        stream = None if machine is None else machine.directory.by_uid.get(uid)
        if stream is not None:
            self._lifetimes.touch(uid >> 48, stream)  # it was being read until now


_NOT_FOUND = Refusal(Code.NOT_FOUND)
_GONE = Refusal(Code.GONE)
