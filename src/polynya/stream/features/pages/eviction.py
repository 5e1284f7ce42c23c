"""Eviction of idle streams to the object store: the stubs that stay in memory, and the commands
that evict and return (docs/decisions/0016).

The leader writes the states of many idle streams of its group into one immutable object, a *block*.
A block has the format and life cycle of a pack whose owner group is their own. `Evict` names the
block; each stream unchanged since the write is replaced by a stub. `Return` brings states back
through the log, so replicas apply commands without reading the store.

A stub holds what lists, lookups and tables need. Only streams that need no background work are
evicted: see `is_evictable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern
from typing import TYPE_CHECKING

import msgspec
from google_crc32c import value as crc32c
from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.base.names import companion_of, is_internal, owner_of, spelled_name
from polynya.stream.command import NEEDS, Command, applies, level_of
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.tables.lifetimes import is_forgotten, without_forgotten
from polynya.stream.parts import ColdSlice, Mark
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import (
    AttributedExtras,
    Compaction,
    Evicted,
    PlainExtras,
    ProfileEpoch,
    Stream,
    StreamExtras,
    TableClaim,
)
from polynya.stream.state.tails import is_stable

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_TYPES = (
    "application/json",
    "application/octet-stream",
    "text/plain",
    "application/x-ndjson",
    "text/plain; charset=utf-8",
)
_BARE = StreamExtras()
_encode = msgspec.msgpack.encode


class EvictedView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The packed stub of an evicted stream, kept in memory. `activity` and `oldest` are ms after
    `created_ms`."""

    uid: int
    content_type: int | str  # a number is an index of `_TYPES`
    encoding: int
    created_ms: int
    activity: int
    next_record: int
    next_byte: int
    first_record: int
    first_byte: int
    closed: bool
    stream_seq: str | None
    pack: int
    offset: int
    length: int
    crc: int
    oldest: int | None
    table: int  # the uid of the table that has taken all of its records; 0: no table ever has
    profile_epoch: ProfileEpoch | None = None
    horizon_ms: int = 0  # from then on key compaction drops tombstones; 0: none wait
    marks: list[Mark] | None = None  # its snapshots, which readers and publishers look up


_stub = msgspec.msgpack.Decoder(EvictedView)
_state = msgspec.msgpack.Decoder(Stream)


# --- evicting -------------------------------------------------------------------------------------


def is_evictable(stream: Stream) -> bool:
    """Report whether only requests can change the stream: no hot bytes, expiry, forks,
    subscriptions, superseded snapshots or own retention, and no table that lags. See also
    `may_leave`."""
    return (
        stream.hot is None
        and (stream.extras is None or _has_only_progress(stream.extras))
        and stream.ttl_seconds is None
        and stream.expires_at_ms is None
        and stream.links is None
        and not stream.pins
        and stream.fork is None
        and not stream.deleted
        and is_stable(stream)
        and (stream.tables is None or _is_taken(stream))
    )


def _has_only_progress(extras: StreamExtras) -> bool:
    """Report whether a profile that does not change, the progress of key compaction, and snapshots
    that stay are all that there is."""
    profile_epoch, compaction, marks = extras.profile_epoch, extras.compaction, extras.marks
    if marks is not None and any(mark.dropped_ms for mark in marks):
        return False
    if compaction is not None and compaction.is_wanted:
        return False
    return (profile_epoch is None or not profile_epoch.changing_since_ms) and (
        extras == StreamExtras(profile_epoch=profile_epoch, compaction=compaction, marks=marks)
    )


def _is_taken(stream: Stream) -> bool:
    """Report whether all records are rows of tables, with nothing pending or skipped in the
    claims."""
    claims = stream.tables or {}
    if any(
        claim.published != claim.claimed or claim.skipped or claim.skipping
        for claim in claims.values()
    ):
        return False
    return (
        not stream.cold
        or index.end_of(stream.cold, -1)[0] <= claims[next(reversed(claims))].claimed
    )


def mark_of(stream: Stream) -> int:
    """Return a checksum that detects any change of an evictable stream. Fields are listed
    explicitly, so that every release computes the same."""
    claims = [
        (table, claim.published, claim.claimed, claim.job)
        for table, claim in (stream.tables or {}).items()
    ]
    tail = (stream.next_record, stream.next_byte, stream.first_record, stream.first_byte)
    extras = stream.extras or _BARE
    rare: list[msgspec.Struct] = [
        each for each in (extras.profile_epoch, extras.compaction) if each is not None
    ]
    rare += extras.marks or ()
    kafka = stream.kafka  # of transactions alone: releases before have none, and leave it out
    if kafka is not None and (kafka.ended or kafka.aborted):
        rare.append(kafka)
    return int(
        crc32c(
            _encode(
                (
                    stream.uid,
                    tail,
                    stream.activity_ms,
                    stream.closed,
                    stream.closed_by,
                    stream.stream_seq,
                    index.written(stream.cold),
                    stream.producers,
                    claims,
                    *rare,
                )
            )
        )
    )


def state_of(stream: Stream) -> bytes:
    """Return the whole state, as encoded in a snapshot."""
    assert stream.hot is None
    return _encode(as_written(stream))


def as_written(stream: Stream) -> Stream:
    """Return the stream with its index and its extras as they are written."""
    if stream.cold is None and stream.extras is None:
        return stream
    extras = None if stream.extras is None else _extras_as_written(stream.extras)
    return structs.replace(stream, cold=index.stored(stream.cold), extras=extras)


def _extras_as_written(extras: StreamExtras) -> PlainExtras:
    past = None if extras.past is None else index.written(extras.past)
    if extras.compaction is not None or extras.marks is not None:
        return structs.replace(extras, past=past)
    plain = (
        extras.retention,
        past,
        extras.detached,
        extras.evicted,
        extras.segments,
        extras.profile_epoch,
    )
    if extras.attributes is not None:
        return AttributedExtras(*plain, extras.attributes)
    return PlainExtras(*plain)


def load_index(stream: Stream) -> None:
    """Convert the written index of a decoded stream to its form in memory. Raises CorruptData."""
    if stream.cold is not None:
        stream.cold = index.loaded(index.joined(stream.cold))
    if stream.extras is not None and stream.extras.past is not None:
        stream.extras.past = index.joined(index.loaded(stream.extras.past)) or None


@applies(Evict)
def apply_evict(machine: Machine, command: Evict, position: int) -> Reply:
    """Evict the streams that are unchanged since their state was written."""
    # A standalone node gets no `SetLevel`: an earlier release must not read data written from now
    # on.
    machine.counters.raise_level(level_of(Evict))
    reply = machine.packs.take_slots(
        command.pack,
        machine.group,
        command.now_ms,
        (_evict(machine, command, slot) for slot in command.slots),
    )
    machine.directory.compact_dicts(len(reply.detail))
    return reply


def _evict(machine: Machine, command: Evict, slot: tuple[int, int, int, int, int]) -> bool:
    uid, mark, offset, length, crc = slot
    stream = machine.directory.by_uid.get(uid)
    if (
        stream is None
        or not is_evictable(stream)
        or not may_leave(machine, stream)
        or mark_of(stream) != mark
    ):
        return False
    number = machine.packs.hold_slice(command.pack, machine.group)
    oldest_ms = index.time_ms_first(stream.cold, 0) if stream.cold else None
    machine.directory.evicted[stream.name] = _packed(
        stream, Evicted(number, offset, length, crc, oldest_ms)
    )
    machine.changes.evicted.add(stream.name)
    machine.changes.streams.discard(uid)
    machine.directory.remove(stream)
    machine.diskless.remove(stream)
    return True


def may_leave(machine: Machine, stream: Stream) -> bool:
    """Report whether a companion's owner is evicted: commands to an owner in memory find the bodies
    of its snapshots in memory. A companion that has all records hot or trimmed stays, as a restore
    makes whole only streams with slices."""
    owner = owner_of(stream.name)
    return not owner or (owner in machine.directory.evicted and stream.cold is not None)


def _packed(stream: Stream, where: Evicted) -> bytes:
    extras = stream.extras or _BARE
    created_ms, content_type = stream.created_ms, stream.content_type
    return _encode(
        EvictedView(
            stream.uid,
            _TYPES.index(content_type) if content_type in _TYPES else content_type,
            stream.encoding,
            created_ms,
            stream.activity_ms - created_ms,
            stream.next_record,
            stream.next_byte,
            stream.first_record,
            stream.first_byte,
            stream.closed,
            stream.stream_seq,
            where.pack,
            where.offset,
            where.length,
            where.crc,
            None if where.oldest_ms is None else where.oldest_ms - created_ms,
            next(reversed(stream.tables)) if stream.tables else 0,
            extras.profile_epoch,
            0 if extras.compaction is None else extras.compaction.horizon_ms,
            extras.marks,
        )
    )


# --- evicted --------------------------------------------------------------------------------------


def stub_of(machine: Machine, name: str) -> EvictedView | None:
    """Return the stub of an evicted stream, or None."""
    data = machine.directory.evicted.get(name)
    return None if data is None else _stub.decode(data)


def stubs(machine: Machine) -> Iterator[tuple[str, EvictedView]]:
    """Yield the names and stubs of all evicted streams; those that return during the iteration are
    skipped."""
    for name in list(machine.directory.evicted):
        stub = stub_of(machine, name)
        if stub is not None:
            yield name, stub


def evicted_view(machine: Machine, name: str) -> Stream | None:
    """Return an evicted stream as known without its state: facts, tail, and the location of the
    state in `extras`."""
    stub = stub_of(machine, name)
    return None if stub is None else _view(name, stub)


def _view(name: str, stub: EvictedView) -> Stream:
    content_type = (
        stub.content_type if isinstance(stub.content_type, str) else _TYPES[stub.content_type]
    )
    oldest_ms = None if stub.oldest is None else stub.created_ms + stub.oldest
    return Stream(
        stub.uid,
        name,
        intern(content_type),
        stub.encoding,
        stub.created_ms,
        stub.created_ms + stub.activity,
        stub.next_record,
        stub.next_byte,
        stub.first_record,
        stub.first_byte,
        stub.closed,
        stream_seq=stub.stream_seq,
        tables={stub.table: TableClaim(stub.next_record, stub.next_record, 0)}
        if stub.table
        else None,
        extras=StreamExtras(
            evicted=Evicted(stub.pack, stub.offset, stub.length, stub.crc, oldest_ms),
            profile_epoch=stub.profile_epoch,
            compaction=Compaction(0, stub.horizon_ms) if stub.horizon_ms else None,
            marks=stub.marks,
        ),
    )


def stream_or_view(machine: Machine, key: int | str) -> Stream | None:
    """Return a stream by uid, or an evicted one by name (without its state), or None."""
    return machine.directory.by_uid.get(key) if isinstance(key, int) else evicted_view(machine, key)


def evicted_views(machine: Machine) -> Iterator[Stream]:
    """Yield all evicted streams without their states, as `stubs` does."""
    return (_view(name, stub) for name, stub in stubs(machine))


def where_of(stream: Stream) -> Evicted | None:
    """Return the location of an evicted stream's state, or None for a stream that is not
    evicted."""
    return None if stream.extras is None else stream.extras.evicted


def adopt(machine: Machine, view: Stream, where: Evicted) -> None:
    """Add an evicted stream from a snapshot."""
    machine.directory.evicted[view.name] = _packed(view, where)
    if is_internal(view.name):
        machine.directory.internal.add(view.name)


def slice_of(machine: Machine, view: Stream) -> ColdSlice:
    """Return the location of the evicted state as a slice of a pack."""
    where = where_of(view)
    assert where is not None, "its state is here"
    return ColdSlice(
        0,
        0,
        1,
        where.length,
        machine.packs.by_number[where.pack],
        where.offset,
        where.length,
        where.crc,
    )


def whole_of(view: Stream, state: bytes) -> Stream:
    """Decode an evicted stream from its state. Raises CorruptData when `state` is not the one that
    was evicted."""
    where = where_of(view)
    assert where is not None, "its state is here"
    if crc32c(state) != where.crc:
        raise CorruptData(
            f"the evicted state of stream {spelled_name(view.name)} in the object store has a "
            "wrong checksum"
        )
    try:
        stream = _state.decode(state)
        load_index(stream)
    except msgspec.MsgspecError as error:
        raise CorruptData(
            f"the evicted state of stream {spelled_name(view.name)} in the object store cannot "
            f"be decoded: {error}"
        ) from error
    if stream.uid != view.uid:
        raise CorruptData(
            f"the evicted state of stream {spelled_name(view.name)} in the object store belongs "
            "to another stream"
        )
    stream.name, stream.content_type = view.name, view.content_type
    # a restored history has skipped numbers
    stream.next_record, stream.next_byte = (
        view.next_record,
        view.next_byte,
    )
    if view.tables is None:  # … and reset its tables
        stream.tables = None
    if stream.extras is not None and view.extras is not None:  # … and dropped lost snapshots
        stream.extras.marks = view.extras.marks
        if stream.extras == _BARE:
            stream.extras = None
    return stream


def needed_by(machine: Machine, command: Command) -> Iterator[str]:
    """Yield the evicted streams whose states this command needs. `ClaimRanges` works without them,
    but claims less."""
    needs = NEEDS.get(type(command))
    evicted = machine.directory.evicted
    return (name for name in (needs(machine, command) if needs else ()) if name in evicted)


def lags(machine: Machine, stub: EvictedView) -> bool:
    """Report whether a table has records of the stream yet to read: true only if no table claimed
    it, or if the last one that did was dropped."""
    free = stub.table == 0 or is_forgotten(machine, stub.table)
    return free and stub.oldest is not None


# --- returning ------------------------------------------------------------------------------------


@applies(Return)
def apply_return(machine: Machine, command: Return, position: int) -> Reply:
    """Return the states that match a stub here to memory. Idempotent."""
    return Reply(
        Code.OK,
        detail=[
            at for at, state in enumerate(command.states) if _return(machine, state, command.now_ms)
        ],
    )


def _return(machine: Machine, state: tuple[str, int, bytes], now_ms: int) -> bool:
    name, uid, data = state
    stub = stub_of(machine, name)
    if stub is None or stub.uid != uid or crc32c(data) != stub.crc:
        return False
    if companion_of(name) in machine.directory.evicted:
        return False  # the bodies of its snapshots return first
    stream = whole_of(_view(name, stub), data)
    without_forgotten(machine, stream)
    del machine.directory.evicted[name]
    machine.directory.add(stream)
    if stream.extras is not None and stream.extras.marks is not None:
        machine.directory.marked[uid] = stream
    machine.diskless.update(stream)
    machine.directory.disordered = True
    machine.changes.streams.add(uid)
    machine.packs.drop_slice(stub.pack, now_ms)
    return True
