"""Lookups of a position by an append time or a record time, in a stream and in what it inherits."""

from __future__ import annotations

from typing import Protocol

from polynya.base.errors import Unavailable
from polynya.local.api import Position, ReadQuery, Refusal
from polynya.local.dependencies import Sources
from polynya.local.local_streams import LocalStreams
from polynya.local.reads import record_times, time_index
from polynya.local.rehydration import Rehydration
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.machine import Machine
from polynya.stream.state.model import ColdSlice, Stream
from polynya.stream.state.tails import high_watermark, stable_of


class Groups(Protocol):
    """The groups of one core, as lookups need them."""

    streams: LocalStreams
    rehydration: Rehydration

    def here(self, group: int) -> Machine:
        """Return the machine of a local group. Raises Unavailable."""
        ...


class TimeLookups:
    """Finds positions by time in the streams of one core."""

    def __init__(self, groups: Groups, sources: Sources) -> None:
        self._groups = groups
        self._sources = sources

    async def position_at(self, group: int, query: ReadQuery) -> tuple[int, int] | Refusal:
        """Return the first retained boundary after which every record was appended at the time or
        later, the begin of the first batch with such a record time, or the tail."""
        name = query.name
        stream = self._groups.streams.find(group, name)
        if not isinstance(stream, Stream):
            return stream
        whole = (
            stream
            if where_of(stream) is None
            else await self._groups.rehydration.copy(group, name)
            or self._groups.here(group).directory.lookup(name)
        )
        if whole is None:
            raise Unavailable("the stream is being evicted or rehydrated; retry")
        machine, first = self._groups.here(group), (stream.first_record, stream.first_byte)
        tail = high_watermark(stream) if query.uncommitted else stable_of(stream)
        begin = max(first[0], query.record_from)
        time_ms: int | None = query.byte
        if query.record == Position.NEWEST:
            time_ms = await record_times.newest_of(machine, whole, self._sources.cold, begin)
        if time_ms is None:
            return tail
        if query.record == Position.AT_TIME:
            found = await self._position_of_time(machine, whole, time_ms, None)
        else:
            found = await self._position_of_record_time(machine, whole, time_ms, begin) or tail
        # a slice may reach into an open transaction, or begin before the first record
        return max(min(found, tail), first)

    async def position_in_source(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]:
        """Return the position of a time by uid, including trimmed records. `until`: the fork point,
        as in `read_uid`. `record_from`: of a record time, from this record on."""
        machine = self._groups.here(uid >> 48)
        stream = machine.directory.by_uid.get(uid)
        if stream is None:
            raise Unavailable(
                f"this node no longer has the source of this fork (incarnation {uid})"
            )
        if record_from < 0:
            return await self._position_of_time(machine, stream, time_ms, until)
        found = await self._position_of_record_time(machine, stream, time_ms, record_from, until)
        return min(found or until, until)

    async def _position_of_record_time(
        self,
        machine: Machine,
        stream: Stream,
        time_ms: int,
        begin: int,
        until: tuple[int, int] | None = None,
    ) -> tuple[int, int] | None:
        """Return the first batch from record `begin` on with a record time of `time_ms` or later,
        inherited ones included."""
        fork = stream.fork
        if fork is not None and begin < fork.record:
            parents = self._sources.parents
            assert parents is not None
            to = min((fork.record, fork.byte), until or (fork.record, fork.byte))
            found = await parents.position_of_time(fork.source_uid, time_ms, to, begin)
            if found < to:
                return found
        return await record_times.first_at(
            machine, stream, self._sources.cold, time_ms, begin, past=until is not None
        )

    async def _position_of_time(
        self, machine: Machine, stream: Stream, time_ms: int, until: tuple[int, int] | None
    ) -> tuple[int, int]:
        position = time_index.position_of(machine, stream, time_ms, past=until is not None)
        fork = stream.fork
        if isinstance(position, time_index.InSource):
            parents = self._sources.parents
            assert parents is not None and fork is not None
            to = (fork.record, fork.byte)
            found = await parents.position_of_time(fork.source_uid, time_ms, min(to, until or to))
            position = (
                found
                if found < to
                else time_index.position_of(
                    machine, stream, time_ms, past=until is not None, own=True
                )
            )
        if isinstance(position, ColdSlice):
            cold = self._sources.cold
            assert cold is not None, "a cold slice without an object store"
            position = await cold.position_at(position, time_ms)
        assert isinstance(position, tuple)
        return position if until is None else min(position, until)
