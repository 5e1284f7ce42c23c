"""Idle streams whose state is in the object store: what is left of them here, how they go, and how they come back (docs/decisions/0016).

The leader writes the states of many idle streams of its group into one immutable object, a *block*: it has the format and the life of a pack
whose home group is their own. `Evict` names it, and a stream that is still as it was written gives up its state for a stub. `Return` brings
states back through the log, so that no replica reads the store to apply anything.

A stub has what lists, lookups and tables ask for. Evicted are only streams of which nothing else has to happen by itself: see `is_evictable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.names import spelled_name
from polynya.stream.commands import (
    Append,
    ClaimRanges,
    ColdSlice,
    Command,
    Create,
    Delete,
    Evict,
    Expire,
    LinkSubscription,
    PinSource,
    Return,
    SetRetention,
    Trim,
)
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.feature_level import level_of
from polynya.stream.state.model import Evicted, Stream, StreamExtras, TableClaim
from polynya.stream.subscriptions.globs import compile_pattern

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_TYPES = ("application/json", "application/octet-stream", "text/plain", "application/x-ndjson", "text/plain; charset=utf-8")
_NAMED = (Append, Create, Delete, Expire, PinSource, SetRetention)  # commands that need the state of the stream that they name
_encode = msgspec.msgpack.encode


class EvictedView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is kept in memory of an evicted stream, packed. Times but the first count from that one, in ms."""

    uid: int
    content_type: int | str  # a number: of `_TYPES`
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
    table: int  # the uid of the table that has taken all of its records; 0: none ever took any


_stub = msgspec.msgpack.Decoder(EvictedView)
_state = msgspec.msgpack.Decoder(Stream)


# --- going -------------------------------------------------------------------------------------------------------------------------


def is_evictable(stream: Stream) -> bool:
    """Whether nothing but a request can concern the stream: no hot bytes, no end in sight, no forks, no subscriptions, no retention of its own,
    and no table that is behind."""
    return (
        stream.hot is None
        and stream.front is None
        and stream.ttl_seconds is None
        and stream.expires_at_ms is None
        and stream.links is None
        and not stream.pins
        and stream.fork is None
        and not stream.deleted
        and (stream.tables is None or _is_taken(stream))
    )


def _is_taken(stream: Stream) -> bool:
    """Whether all of its records are rows of tables, and these say so."""
    claims = stream.tables or {}
    if any(claim.published != claim.claimed or claim.skipped or claim.skipping for claim in claims.values()):
        return False
    return not stream.cold or index.end_of(stream.cold, -1)[0] <= claims[next(reversed(claims))].claimed


def mark_of(stream: Stream) -> int:
    """What tells whether anything of an evictable stream has changed. The fields are named one by one: every release finds the same."""
    claims = [(table, claim.published, claim.claimed, claim.job) for table, claim in (stream.tables or {}).items()]
    tail = (stream.next_record, stream.next_byte, stream.first_record, stream.first_byte)
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
                    stream.cold,
                    stream.producers,
                    claims,
                )
            )
        )
    )


def state_of(stream: Stream) -> bytes:
    """The whole state, as a snapshot has it."""
    assert stream.hot is None
    return _encode(stream)


def apply_evict(machine: Machine, command: Evict, place: int) -> Reply:
    """Those that are still as they were written."""
    machine.level = max(machine.level, level_of(Evict))  # of a node by itself: an earlier release must not read what is written from now on
    reply = machine.take_slots(command.pack, machine.group, command.now_ms, (_evict(machine, command, slot) for slot in command.slots))
    machine.make_small(len(reply.detail))
    return reply


def _evict(machine: Machine, command: Evict, slot: tuple[int, int, int, int, int]) -> bool:
    uid, mark, offset, length, crc = slot
    stream = machine.by_uid.get(uid)
    if stream is None or not is_evictable(stream) or mark_of(stream) != mark:
        return False
    number = machine.hold_slice(command.pack, machine.group)
    oldest_ms = index.time_ms_first(stream.cold, 0) if stream.cold else None
    machine.evicted[stream.name] = _packed(stream, Evicted(number, offset, length, crc, oldest_ms))
    machine.changes.evicted.add(stream.name)
    machine.changes.streams.discard(uid)
    del machine.streams[stream.name], machine.by_uid[uid]
    return True


def _packed(stream: Stream, where: Evicted) -> bytes:
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
        )
    )


# --- away --------------------------------------------------------------------------------------------------------------------------


def stub_of(machine: Machine, name: str) -> EvictedView | None:
    """Of an evicted stream."""
    data = machine.evicted.get(name)
    return None if data is None else _stub.decode(data)


def stubs(machine: Machine) -> Iterator[tuple[str, EvictedView]]:
    """Of all that are evicted when this is called and still are when it is their turn, with their names."""
    for name in list(machine.evicted):
        stub = stub_of(machine, name)
        if stub is not None:
            yield name, stub


def ghost_of(machine: Machine, name: str) -> Stream | None:
    """What is known of an evicted stream without its state: its facts, its tail, and in `front` where the rest is."""
    stub = stub_of(machine, name)
    return None if stub is None else _ghost(name, stub)


def _ghost(name: str, stub: EvictedView) -> Stream:
    content_type = stub.content_type if isinstance(stub.content_type, str) else _TYPES[stub.content_type]
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
        tables={stub.table: TableClaim(stub.next_record, stub.next_record, 0)} if stub.table else None,
        front=StreamExtras(evicted=Evicted(stub.pack, stub.offset, stub.length, stub.crc, oldest_ms)),
    )


def stream_or_ghost(machine: Machine, key: int | str) -> Stream | None:
    """What there is here of a stream, by its uid; of one that is evicted by its name."""
    return machine.by_uid.get(key) if isinstance(key, int) else ghost_of(machine, key)


def ghosts(machine: Machine) -> Iterator[Stream]:
    """As by `stubs`."""
    return (_ghost(name, stub) for name, stub in stubs(machine))


def where_of(stream: Stream) -> Evicted | None:
    """Where the state is of a stream as `ghost_of` gives it; None for one that has its state."""
    return None if stream.front is None else stream.front.evicted


def adopt(machine: Machine, ghost: Stream, where: Evicted) -> None:
    """An evicted stream, as a snapshot has it."""
    machine.evicted[ghost.name] = _packed(ghost, where)


def slice_of(machine: Machine, ghost: Stream) -> ColdSlice:
    """The state's place as that of any bytes in a pack."""
    where = where_of(ghost)
    assert where is not None, "its state is here"
    return ColdSlice(0, 0, 1, where.length, machine.pack_keys[where.pack], where.offset, where.length, where.crc)


def whole_of(ghost: Stream, state: bytes) -> Stream:
    """The stream again. Raises CorruptData when `state` is not the one that was put away."""
    where = where_of(ghost)
    assert where is not None, "its state is here"
    if crc32c(state) != where.crc:
        raise CorruptData(f"the state of the stream {spelled_name(ghost.name)} in the object store has another checksum than it should")
    try:
        stream = _state.decode(state)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"the state of the stream {spelled_name(ghost.name)} in the object store cannot be decoded: {error}") from error
    if stream.uid != ghost.uid:
        raise CorruptData(f"the state of the stream {spelled_name(ghost.name)} in the object store is that of another one")
    stream.name, stream.content_type = ghost.name, ghost.content_type
    stream.next_record, stream.next_byte = ghost.next_record, ghost.next_byte  # a new history has jumped over numbers
    if ghost.tables is None:  # … and begun its tables anew
        stream.tables = None
    return stream


def needed_by(machine: Machine, command: Command) -> Iterator[str]:
    """The evicted streams whose states this command needs. `ClaimRanges` can do without, and takes less then."""
    evicted = machine.evicted
    if isinstance(command, _NAMED):
        names: Iterator[str] = iter((command.name,))
    elif isinstance(command, Trim):
        names = iter(command.names)
    elif isinstance(command, LinkSubscription):
        names = _watched_by(machine, command)
    elif isinstance(command, ClaimRanges):
        names = _claimed_by(machine, command)
    else:
        return iter(())
    return (name for name in names if name in evicted)


def _watched_by(machine: Machine, command: LinkSubscription) -> Iterator[str]:
    watch = machine.subscriptions.watches.get(command.id)
    known = watch.registration.streams if watch is not None and watch.registration.uid == command.uid else {}
    yield from (name for name in command.streams if name not in known)
    if command.pattern and (watch is None or watch.registration.uid < command.uid):
        matches = compile_pattern(command.pattern)
        yield from (name for name in machine.evicted if name != command.without and matches(name))


def _claimed_by(machine: Machine, command: ClaimRanges) -> Iterator[str]:
    if not command.fresh:
        return
    for name, stub in stubs(machine):
        if lags(stub, command.table) and name.startswith(command.prefix) and not any(map(name.startswith, command.without)):
            yield name


def lags(stub: EvictedView, table: int) -> bool:
    """Whether the stream has records that this table has yet to take: only a stream that no table ever had does."""
    return stub.table == 0 and stub.oldest is not None


# --- coming back -------------------------------------------------------------------------------------------------------------------


def apply_return(machine: Machine, command: Return, place: int) -> Reply:
    """Those that are evicted still, and as they were put away. Repeating it changes nothing."""
    return Reply(Code.OK, detail=[at for at, state in enumerate(command.states) if _return(machine, state, command.now_ms)])


def _return(machine: Machine, state: tuple[str, int, bytes], now_ms: int) -> bool:
    name, uid, data = state
    stub = stub_of(machine, name)
    if stub is None or stub.uid != uid or crc32c(data) != stub.crc:
        return False
    stream = whole_of(_ghost(name, stub), data)
    del machine.evicted[name]
    machine.streams[name] = stream
    machine.by_uid[uid] = stream
    machine.disordered = True
    machine.changes.streams.add(uid)
    machine.drop_slice(stub.pack, now_ms)
    return True


RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {Evict: apply_evict, Return: apply_return}
