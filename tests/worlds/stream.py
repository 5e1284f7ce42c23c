"""Machines with a journal and an object store made of dicts, and the naive executor of read
plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google_crc32c import value as crc32c
from msgspec import structs

from polynya.base.names import companion_of, owner_of
from polynya.stream.command import Command
from polynya.stream.features.attributes.held import attributes_of
from polynya.stream.features.markers.commands import TxnMarkers, TxnSettle
from polynya.stream.features.markers.control_batch import of_inline_entry, stored
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.pages.eviction import (
    evicted_view,
    evicted_views,
    is_evictable,
    mark_of,
    may_leave,
    slice_of,
    state_of,
    whole_of,
)
from polynya.stream.features.retention.rules import retention_of
from polynya.stream.features.retention.trimming import past_of
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, ColdSlice, Encoding, Producer
from polynya.stream.read_plan import AT_BYTE, ColdPiece, HotPiece, ReadPlan, ReadRefused, Want, cut
from polynya.stream.replies import Reply
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of, write_image
from polynya.stream.state import index
from polynya.stream.state.changes import Changes, SinceCopy, keys_of
from polynya.stream.state.index import Index
from polynya.stream.state.model import HotBatch, Stream, StreamExtras
from polynya.stream.state.profile_epochs import profile_epoch_of
from polynya.stream.state.record_gaps import JUMP

Page = tuple[bytes, tuple[int, int], tuple[int, int]]  # payload, begin, end


def raw_batch(payload: bytes) -> Batch:
    return Batch(Encoding.BYTES, 1, payload, crc32c(payload))


def kafka_batch(records: int, payload: bytes = b"") -> Batch:
    """Return opaque bytes that stand for a record batch."""
    payload = payload or b"k" * (10 * records)
    return Batch(Encoding.KAFKA, records, payload, crc32c(payload))


def kafka_producer(number: int, epoch: int, sequence: int, records: int) -> Producer:
    """Return the producer of a batch that begins with this sequence."""
    return Producer(str(number), epoch, sequence, (sequence + records - 1) % 2**31, 1)


def json_batch(*records: bytes) -> Batch:
    parts = [record + b"," for record in records]
    lengths = b"".join(len(part).to_bytes(4, "little") for part in parts) if len(parts) > 1 else b""
    payload = b"".join(parts)
    return Batch(Encoding.JSON, len(parts), payload, crc32c(payload), lengths)


def whole_delta(machine: Machine) -> deltas.SnapshotPart:
    """Encode all of the state, as a delta that builds on nothing."""
    count, streams = deltas.encode_streams(
        machine, iter([*machine.directory.by_uid, *machine.directory.evicted])
    )
    return deltas.SnapshotPart(
        deltas.encode_head(machine, Changes(), count, whole=True) + streams, delta=True
    )


class World:
    """The machines of several groups. Each step is also applied to a machine restored from the
    snapshot before it, and is in a chain of snapshots that says the same as the machine."""

    def __init__(self, groups: int = 4) -> None:
        self.machines = {group: Machine(group, groups) for group in range(groups + 1)}
        self.payloads: dict[int, bytes] = {}  # the journal: position -> payload
        self.slices: dict[
            tuple[str, int], list[HotBatch]
        ] = {}  # the store: (pack, offset) -> batches …
        self.states: dict[tuple[str, int], bytes] = {}  # … and of blocks, states
        self.position = 0
        self.chains = {
            group: [deltas.SnapshotPart(snapshot_of(machine))]
            for group, machine in self.machines.items()
        }
        self.copies: dict[int, bytes] = {}  # the states of groups that were copied to the store
        self.checks_copies = True  # False: something else copies them

    def apply(self, group: int, command: Command) -> Reply:
        self.position += 1
        batch = getattr(command, "batch", None)
        if isinstance(command, TxnMarkers | TxnSettle):
            batch = command.marker()
        if batch is not None:
            self.payloads[self.position] = batch.payload
        machine = self.machines[group]
        twin = self.restored(machine)
        reply = machine.apply(command, self.position)
        assert twin.apply(command, self.position) == reply
        assert snapshot_of(twin) == snapshot_of(machine)
        check_invariants(machine, self.states)
        if self.position % 3:  # several commands in one delta, too
            self.chain(group)
        if self.checks_copies and self.position % 5 == 0:
            self.check_copy(group)
        return reply

    def adopt(self, group: int, machine: Machine) -> None:
        """Replace the machine of a group by another, as after a restore."""
        self.machines[group] = machine
        self.chains[group] = [deltas.SnapshotPart(snapshot_of(machine))]

    def jump(self, group: int, numbers: int = JUMP) -> None:
        """Begin a new history: the next record of every stream gets a number that is far away, or
        one behind a small gap, such as whatever removes records leaves."""
        image = decode_image(snapshot_of(self.machines[group]))
        for stream in image.streams:
            stream.next_record += numbers
        self.adopt(
            group, machine_from(write_image(image), lambda position, uid: self.payloads[position])
        )

    def chain(self, group: int) -> None:
        """Add a delta, and now and then merge some of them."""
        machine, parts = self.machines[group], self.chains[group]
        changes = machine.take_changes()
        count, streams = deltas.encode_streams(
            machine, iter([*sorted(changes.streams), *sorted(changes.evicted)])
        )
        parts.append(
            deltas.SnapshotPart(
                deltas.encode_head(machine, changes, count, whole=False) + streams,
                delta=True,
                root=False,
            )
        )
        if self.position % 5 == 0 and len(parts) > 3:
            parts[1:] = [deltas.SnapshotPart(deltas.merge(parts[1:]), delta=True, root=False)]
        merged = deltas.merge(parts)
        assert merged == snapshot_of(machine), "what the deltas say is what the machine is"
        if self.position % 11 == 0:
            parts[:] = [deltas.SnapshotPart(merged)]
        elif self.position % 13 == 0:
            parts[:] = [whole_delta(machine)]

    def check_copy(self, group: int) -> None:
        """Assert that a copy of the state and the changes since say what the machine is, whatever
        snapshots took meanwhile. Now and then there is another copy."""
        machine = self.machines[group]
        taken, since = machine.take_changes(), machine.kept.since_copy
        if since is not None:
            count, streams = deltas.encode_streams(machine, iter(keys_of(since.changes)))
            head = deltas.encode_head(machine, since.changes, count, whole=False)
            parts = [
                deltas.SnapshotPart(self.copies[group]),
                deltas.SnapshotPart(head + streams, delta=True, root=False),
            ]
            assert deltas.merge(parts) == snapshot_of(machine), (
                "a delta of the copy lacks something"
            )
        if since is None or self.position % 4 == 0:
            self.copies[group] = snapshot_of(machine)
            machine.kept.since_copy = SinceCopy(machine.diskless.left)
        machine.kept.put_back(taken)

    def restart(self, group: int) -> None:
        """Restart a machine with only the content of its chain."""
        self.chain(group)
        self.chains[group] = [deltas.SnapshotPart(deltas.merge(self.chains[group]))]
        self.machines[group] = machine_from(
            self.chains[group][0].body, lambda position, uid: self.payloads[position]
        )

    def restored(self, machine: Machine) -> Machine:
        return machine_from(snapshot_of(machine), lambda position, uid: self.payloads[position])

    # Idle streams.

    def evict(self, group: int, names: Iterable[str], now_ms: int = 0) -> list[str]:
        """Evict the evictable ones in one command, sent twice, and return their names."""
        machine = self.machines[group]
        pack, slots = f"block{self.position}", []
        found = [machine.directory.streams[name] for name in names]
        for stream in sorted(found, key=lambda stream: bool(owner_of(stream.name))):
            state = state_of(stream) if stream.hot is None else b""
            self.states[pack, len(slots)] = state
            slots.append((stream.uid, mark_of(stream), len(slots), len(state), crc32c(state)))
        streams = [machine.directory.by_uid[uid] for uid, *_ in slots]
        accepted = [streams[at].name for at in self.apply(group, Evict(pack, now_ms, slots)).detail]
        wanted = [each.name for each in streams if is_evictable(each) and may_leave(machine, each)]
        assert accepted == wanted
        assert not self.apply(group, Evict(pack, now_ms, slots)).detail
        return accepted

    def bring(self, group: int, names: Iterable[str], now_ms: int = 0) -> None:
        """Return streams to the memory, by a command that is sent twice."""
        machine = self.machines[group]
        both = {each: None for name in names for each in (companion_of(name), name)}
        views = [view for name in both if (view := evicted_view(machine, name)) is not None]
        command = Return(
            [(view.name, view.uid, self._state(machine, view)) for view in views], now_ms
        )
        assert self.apply(group, command).detail == list(range(len(views)))
        assert self.apply(group, command).detail == []

    def copy(self, group: int, name: str) -> Stream:
        """Return the stream, as it would be in memory if it is evicted."""
        machine = self.machines[group]
        view = evicted_view(machine, name)
        return (
            machine.directory.streams[name]
            if view is None
            else whole_of(view, self._state(machine, view))
        )

    def _state(self, machine: Machine, view: Stream) -> bytes:
        position = slice_of(machine, view)
        return self.states[position.pack, position.offset]

    def slice_of(self, stream: Stream, batches: int, pack: str) -> ColdSlice:
        """Put the first hot batches of a stream into the store."""
        run = list((stream.hot or [])[:batches])
        offset = len(self.slices)
        self.slices[pack, offset] = run
        length = sum(len(batch.payload) for batch in run)
        end = run[-1].record + run[-1].records
        following = (stream.hot or [])[batches:]
        if following and following[0].record - end < JUMP:
            end = following[0].record
        records = end - run[0].record
        missing = records - sum(batch.records for batch in run)
        return ColdSlice(
            run[0].record,
            run[0].byte,
            records,
            length,
            pack,
            offset,
            length,
            0,
            encoding=run[0].encoding,
            record_time_ms_max=max(batch.record_time_ms_max or batch.time_ms for batch in run),
            missing_records=missing,
            batches=len(run),
        )

    def batches_of(self, cold: ColdSlice) -> list[HotBatch]:
        """Return the batches of an index entry at their positions; those of a diskless writer have
        none in the store."""
        if cold.is_inline:
            marker = stored(of_inline_entry(cold))
            return [
                HotBatch(
                    cold.record,
                    cold.byte,
                    1,
                    marker.payload,
                    b"",
                    marker.crc,
                    cold.time_ms,
                    marker.record_time_ms_max,
                    marker.encoding,
                    0,
                    flags=marker.flags,
                )
            ]
        batches = self.slices[cold.pack, cold.offset]
        if cold.first_batch or batches[0].record < 0:
            batches = batches[cold.first_batch :][: cold.batches]
            record, byte, placed = cold.record, cold.byte, []
            for batch in batches:
                placed.append(structs.replace(batch, record=record, byte=byte))
                record, byte = record + batch.records, byte + len(batch.payload)
            return placed
        return batches

    def merged(self, entries: list[ColdSlice], pack: str) -> ColdSlice:
        """Put neighbours of an index into the store again, as one slice."""
        offset = len(self.slices)
        self.slices[pack, offset] = [batch for cold in entries for batch in self.batches_of(cold)]
        length = sum(cold.length for cold in entries)
        records = entries[-1].record + entries[-1].records - entries[0].record
        missing = records - sum(cold.records - cold.missing_records for cold in entries)
        return ColdSlice(
            entries[0].record,
            entries[0].byte,
            records,
            length,
            pack,
            offset,
            length,
            0,
            encoding=entries[0].encoding,
            record_time_ms_max=max(cold.record_time_ms_max for cold in entries),
            missing_records=missing,
            batches=sum(cold.batches for cold in entries),
        )

    def read(self, stream: Stream, want: Want) -> Page | ReadRefused:
        """Carry out a plan, as a service does: a piece that comes back short ends the page."""
        machine = self.machines[stream.uid >> 48]
        plan = machine.plan_read(
            stream,
            want.record,
            want.byte,
            bytes_max=want.bytes_max,
            whole_records=want.whole_records,
            until=want.until,
        )
        if isinstance(plan, ReadRefused):
            return plan
        page = _Page()
        for piece in plan.pieces:
            if isinstance(piece, HotPiece):
                page.add(piece)
                continue
            left = want.bytes_max - len(page.payload)
            if isinstance(piece, ColdPiece):
                inner = Want(
                    piece.want.record, piece.want.byte, left, want.whole_records, piece.want.until
                )
                found = cut(
                    self.batches_of(piece.slice),
                    inner,
                    empty=page.begin is None,
                )
                page.add_plan(found)
                whole = (found.record, found.byte) == piece.want.until
            else:
                to = (piece.to_record, piece.to_byte)
                source = self.machines[piece.source_uid >> 48].directory.by_uid[piece.source_uid]
                inherited = self.read(
                    source, Want(piece.record, piece.byte, left, want.whole_records, to)
                )
                assert not isinstance(inherited, ReadRefused)
                page.add_page(inherited)
                whole = inherited[2] == to
            if not whole:
                assert page.end is not None and page.begin is not None
                return bytes(page.payload), page.begin, page.end
        assert page.end is None or page.end[1] == plan.byte
        begin = page.begin or (plan.begin_record, plan.begin_byte)
        return bytes(page.payload), begin, (plan.record, plan.byte)


class _Page:
    def __init__(self) -> None:
        self.payload = bytearray()
        self.begin: tuple[int, int] | None = None
        self.end: tuple[int, int] | None = None

    def add(self, piece: HotPiece) -> None:
        self.begin = self.begin or (piece.record, piece.byte)
        self.payload += piece.payload
        # the plan knows the record that this is before
        self.end = (
            piece.record,
            piece.byte + len(piece.payload),
        )

    def add_plan(self, plan: ReadPlan) -> None:
        for piece in plan.pieces:
            assert isinstance(piece, HotPiece)
            self.add(piece)
        if plan.pieces:
            self.end = (plan.record, plan.byte)

    def add_page(self, page: Page) -> None:
        self.payload += page[0]
        self.begin, self.end = page[1], page[2]


def check_invariants(
    machine: Machine, states: Mapping[tuple[str, int], bytes] | None = None
) -> None:
    """Check the machine's invariants. `states`: of the blocks in the store."""
    assert not machine.directory.streams.keys() & machine.directory.evicted.keys()
    assert all(
        (stream.extras is None or stream.extras.evicted is None)
        for stream in machine.directory.streams.values()
    )
    assert list(machine.directory.streams) == [
        stream.name for stream in machine.directory.by_uid.values()
    ]
    assert machine.directory.hot_bytes == sum(
        len(batch.payload) for _, hot in machine.directory.flush_candidates() for batch in hot
    )
    assert machine.directory.attribute_bytes == sum(
        0 if held is None else len(held.value)
        for held in map(attributes_of, machine.directory.streams.values())
    )
    slices: dict[str, int] = {}
    for stream in machine.directory.streams.values():
        assert (stream.hot is not None) == (stream.uid in machine.directory.hot)
        assert stream.pins is None or stream.pins
        assert not stream.deleted or stream.pins
        _check_contiguous(machine, stream)
        _check_front(machine, stream)
        assert (retention_of(stream) is not None) == (stream.uid in machine.directory.retaining)
        profile_epoch = profile_epoch_of(stream)
        diskless = bool(profile_epoch.profile or profile_epoch.changing_since_ms)
        assert diskless == (stream.uid in machine.diskless.streams)
        assert (profile_epoch.changing_since_ms > 0) == (stream.uid in machine.diskless.changing)
        assert profile_epoch.record <= stream.next_record or stream.deleted
        times = [cold.time_ms for cold in machine.packs.index_of(stream)]
        ends = [index.time_ms_max(stream.cold, at) for at in range(len(times)) if stream.cold]
        assert ends == sorted(ends), "append times along an index never decrease"
        for cold in machine.packs.whole_index_of(stream):
            if cold.is_inline:
                continue
            slices[cold.pack] = slices.get(cold.pack, 0) + 1
    for view in evicted_views(machine):
        position = slice_of(machine, view)
        assert view.uid not in machine.directory.by_uid
        whole = whole_of(view, (states or {})[position.pack, position.offset])
        assert is_evictable(whole)
        named = [cold.pack for cold in machine.packs.whole_index_of(whole) if not cold.is_inline]
        for pack in [position.pack, *named]:
            slices[pack] = slices.get(pack, 0) + 1
    assert machine.diskless.streams.keys() <= machine.directory.by_uid.keys()
    assert slices == {pack: held.slices for pack, held in machine.packs.held.items()}
    assert machine.packs.by_number == {
        held.number: pack for pack, held in machine.packs.held.items()
    }
    assert not machine.packs.released.keys() & machine.packs.held.keys()


def _check_contiguous(machine: Machine, stream: Stream) -> None:
    """Check that stored data begins at the end of the inherited part, or at or before the first
    kept record."""
    begin = (stream.fork.record, stream.fork.byte) if stream.fork else (0, 0)
    first = (stream.first_record, stream.first_byte)
    pieces = [*machine.packs.index_of(stream)[:1], *(stream.hot or ())[:1]]
    record, byte = (
        (pieces[0].record, pieces[0].byte) if pieces else (stream.next_record, stream.next_byte)
    )
    assert begin <= (record, byte)
    assert (record, byte) <= max(first, begin) or _follows((record, byte), max(first, begin))
    assert first <= (stream.next_record, stream.next_byte) or stream.deleted
    for cold in machine.packs.index_of(stream):
        assert _follows((cold.record, cold.byte), (record, byte))
        record, byte = cold.record + cold.records, byte + cold.length
    for hot in stream.hot or ():
        assert _follows((hot.record, hot.byte), (record, byte))
        record, byte = hot.record + hot.records, byte + len(hot.payload)
    assert _follows((stream.next_record, stream.next_byte), (record, byte))


def _follows(at: tuple[int, int], end: tuple[int, int]) -> bool:
    """Check that records follow without a gap, apart from numbers skipped by a new history, or a
    small gap."""
    return at[1] == end[1] and at[0] >= end[0] and (at[0] - end[0]) % JUMP < 200


def position_of(text: str) -> tuple[int, int]:
    """Parse a position: `3_17` a token, `start`, `now`, `@17` a byte position."""
    if text in ("start", "now"):
        return {"start": -1, "now": -2}[text], 0
    if text.startswith("@"):
        return AT_BYTE, int(text[1:])
    record, _, byte = text.partition("_")
    return int(record), int(byte)


def _check_front(machine: Machine, stream: Stream) -> None:
    """Check that all stored records are kept, or inherited by a fork."""
    spans = [
        (pin.first_record, pin.record + (pin.prefix > 0)) for pin in (stream.pins or {}).values()
    ]
    past = Index(past_of(stream), machine.packs.by_number)
    ends = [cold.record + cold.records for cold in past]
    assert all(end <= after.record for end, after in zip(ends, past[1:], strict=False))
    for cold in past:
        assert cold.record + cold.records <= stream.first_record
        assert any(begin < cold.record + cold.records and cold.record < end for begin, end in spans)
    if not stream.deleted:
        cold = next(iter(machine.packs.index_of(stream)), None)
        assert cold is None or cold.record + cold.records > stream.first_record
    if stream.hot and not any(end > stream.hot[0].record for _, end in spans):
        assert stream.hot[0].record + stream.hot[0].records > stream.first_record
    assert stream.extras != StreamExtras()
