"""The rules that end transactions: a marker where the stream has batches of it, and the number that
is refused from then on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import ENDED_MS
from polynya.stream.command import applies, needs
from polynya.stream.features.appends import producers
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.appends.rules import add_batch, tail_moved
from polynya.stream.features.appends.transactions import end_transaction
from polynya.stream.features.appends.undecided import end_append
from polynya.stream.features.consumer_groups.transactions import settle_offsets
from polynya.stream.features.markers.commands import TxnMarkers, TxnSettle
from polynya.stream.features.markers.control_batch import inline_entry
from polynya.stream.features.pages.eviction import stub_of
from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.parts import Batch
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import KafkaState, Stream
from polynya.stream.state.profile_epochs import profile_epoch_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_ENDED_AT_ONCE = 2  # entries of `ended` looked at when one is added, so that they become fewer


class _End(msgspec.Struct, frozen=True, gc=False):
    """The end of a transaction, as one command tells it."""

    producer: int
    epoch: int
    number: int
    commit: bool
    marker: Batch
    now_ms: int
    position: int


@applies(TxnMarkers)
def apply_txn_markers(machine: Machine, command: TxnMarkers, position: int) -> Reply:
    """End a transaction in streams and consumer groups: OK, or EVICTED with the uids of the streams
    whose states are needed first. A deleted stream has nothing to end."""
    machine.counters.raise_level(TRANSACTION_LEVEL)  # a standalone node gets no `SetLevel`
    end = _end_of(command, position)
    evicted = []
    for uid, name in command.uids:
        stream = machine.directory.by_uid.get(uid)
        if stream is not None:
            _end_in_stream(machine, stream, end)
        elif _is_evicted(machine, uid, name):
            evicted.append(uid)
    for group in command.groups:
        _end_in_group(machine, group, end)
    return Reply(Code.EVICTED if evicted else Code.OK, detail=evicted)


@needs(TxnMarkers)
def needs_of_markers(machine: Machine, command: TxnMarkers) -> Iterable[str]:
    """Yield the evicted streams that get the number: else a late batch would open it again."""
    return (name for uid, name in command.uids if _is_evicted(machine, uid, name))


def _is_evicted(machine: Machine, uid: int, name: str) -> bool:
    stub = stub_of(machine, name)
    return stub is not None and stub.uid == uid


@applies(TxnSettle)
def apply_txn_settle(machine: Machine, command: TxnSettle, position: int) -> Reply:
    """End a transaction in a stream or in a consumer group. One that has ended stays as it is."""
    machine.counters.raise_level(TRANSACTION_LEVEL)
    end = _end_of(command, position)
    stream = machine.directory.by_uid.get(command.uid)
    if command.group:
        _end_in_group(machine, command.group, end)
    elif stream is not None:
        _end_in_stream(machine, stream, end)
    return Reply(Code.OK)


def _end_of(command: TxnMarkers | TxnSettle, position: int) -> _End:
    return _End(
        command.producer,
        command.epoch,
        command.number,
        command.commit,
        command.marker(),
        command.now_ms,
        position,
    )


def _end_in_group(machine: Machine, group: str, end: _End) -> None:
    settle_offsets(machine, group, end.producer, end.number, commit=end.commit, now_ms=end.now_ms)


def _end_in_stream(machine: Machine, stream: Stream, end: _End) -> None:
    """End the transaction in a stream. Without batches of it only the number is kept."""
    kafka = stream.kafka or KafkaState()
    known = kafka.ended.get(end.producer)
    if stream.deleted or (known is not None and end.number <= known[0]):
        return
    stream.kafka = kafka
    opened = kafka.open.get(end.producer)
    if (
        opened is not None
        and opened.number <= end.number
        and not end_append(machine, stream, end.producer, commit=end.commit)
    ):
        _mark(machine, stream, end)
    kafka.ended.pop(end.producer, None)
    log_ms = machine.counters.log_ms
    kafka.ended[end.producer] = (end.number, end.marker.record_time_ms_max, log_ms)
    _fence(stream, end)
    _forget_ended(stream, kafka, log_ms)
    machine.changes.streams.add(stream.uid)


def _mark(machine: Machine, stream: Stream, end: _End) -> None:
    """Write the marker, and let committed readers go on behind the transaction."""
    record, marker = stream.next_record, end.marker
    live: Batch | None = marker
    if _is_in_index(machine, stream):
        _append_inline(machine, stream, end)
        live = None
    else:
        produce = Produce(stream.name, end.now_ms, marker)
        add_batch(machine, stream, produce, marker, end.position)
    stream.activity_ms = end.now_ms
    if stream.uid in machine.tails.watched:  # those that read what is not committed, too
        size = len(marker.payload)
        moved = tail_moved(stream, live, record, size, time_ms=end.now_ms)
        machine.tails.effects.append(moved)
    end_transaction(machine, stream, end.producer, commit=end.commit)


def _is_in_index(machine: Machine, stream: Stream) -> bool:
    """Report whether all of the stream is in its index, and the next append too."""
    return (
        stream.uid in machine.diskless.streams
        and not stream.hot
        and not profile_epoch_of(stream).changing_since_ms
    )


def _append_inline(machine: Machine, stream: Stream, end: _End) -> None:
    """Write the marker as an entry of the index. Append times along an index never decrease."""
    cold = inline_entry(
        end.producer,
        end.epoch,
        commit=end.commit,
        decided_ms=end.marker.record_time_ms_max,
        at=(stream.next_record, stream.next_byte),
        now_ms=end.now_ms,
    )
    largest_ms = index.time_ms_max(stream.cold, -1) if stream.cold else 0
    stream.cold = index.appended(stream.cold, index.packed(cold, 0, largest_ms))
    stream.next_record += cold.records
    stream.next_byte += cold.length
    if stream.links is not None:
        note_append(machine.subscriptions, stream)


def _fence(stream: Stream, end: _End) -> None:
    """Let the producer begin again with a higher epoch of the marker: then no batch of an earlier
    epoch is accepted."""
    states, key = stream.producers, producers.kafka_key(end.producer)
    state = states.get(key) if states else None
    if states is None or state is None:
        return
    epoch, _, active_ms = producers.STATE.unpack_from(state)
    if end.epoch > epoch:
        states[key] = producers.STATE.pack(end.epoch, -1, active_ms)


def _forget_ended(stream: Stream, kafka: KafkaState, log_ms: int) -> None:
    """Drop old numbers of producers without a state here, from the oldest on."""
    for _ in range(_ENDED_AT_ONCE):
        producer, ended = next(iter(kafka.ended.items()))
        if log_ms - ended[2] <= ENDED_MS:
            return
        del kafka.ended[producer]
        if producers.kafka_key(producer) in (stream.producers or {}):
            kafka.ended[producer] = ended  # as long as the state is kept
