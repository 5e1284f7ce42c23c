"""The transfer format of a group's snapshot for a member that is far behind
(docs/formats/snapshots.md, Transfer).

A transfer has the bodies of the chain and the hot payload that these leave in the journal. Both
ends keep it in a file, so memory use does not grow with its size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct

from google_crc32c import extend
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.engine.snapshots.chain import COUNT_BYTES, LINK_BYTES, links_of, transfer_head
from polynya.replica.log import count_of, decode_part
from polynya.stream.features.appends.commands import BUNDLE_COMMANDS_MAX, Append, Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import TxnMarkers, TxnSettle
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import decode_image, machine_from
from polynya.wal import Journal, JournalEntry
from polynya.wal.scratch import Scratch
from polynya.wal.snapshots import SnapshotLink, SnapshotStore

PIECE_BYTES = 1 << 20
_BODY = Struct("<Q")  # length
_HOT = Struct("<QI")  # position in the sender's journal, length


def pack_transfer(
    links: Sequence[SnapshotLink], store: SnapshotStore, journal: Journal, into: Scratch
) -> None:
    """Write a chain's transfer into a file, in a thread. Raises CorruptData or OSError when a part
    is missing or damaged, and DiskFull."""
    into.append(transfer_head(links))
    for link in links:
        crc = 0
        for offset in range(0, link.length, PIECE_BYTES):
            piece = store.read(link, offset, PIECE_BYTES)
            crc = extend(crc, piece)
            into.append(piece)
        if crc != link.crc:
            raise CorruptData(f"the snapshot of group {link.group} at {link.index} was rewritten")
    payload_of = PayloadReader(journal)
    for stream in decode_image(_merged(into, len(transfer_head(links)), links)).streams:
        for batch in reversed(stream.hot or ()):
            payload = payload_of(batch.position, stream.uid)
            into.append(_HOT.pack(batch.position, len(payload)), payload)


def unpack_transfer(data: Scratch, identity: int) -> Machine:
    """Return the machine with all its payload; its positions are the sender's. Runs in a thread.

    Raises CorruptData or OSError."""
    try:
        machine = _of_the_first_clusters(data, identity)
        machine = _of_a_chain(data, identity) if machine is None else machine
    except (EOFError, struct.error) as error:
        raise CorruptData(f"a received snapshot is unreadable: {error}") from error
    for _, hot in machine.directory.flush_candidates():
        for batch in hot:
            if crc32c(batch.payload) != batch.crc:
                raise CorruptData("a payload in a received snapshot fails its checksum")
    return machine


def _of_a_chain(data: Scratch, identity: int) -> Machine:
    count = data.read(0, COUNT_BYTES)
    heads = data.read(COUNT_BYTES, LINK_BYTES * int.from_bytes(count, "little"))
    if crc32c(count + heads) != identity:
        raise CorruptData("a received snapshot fails its checksum")
    links = links_of(count, heads)
    bodies = len(count) + len(heads)
    return machine_from(
        _merged(data, bodies, links), _Payloads(data, bodies + sum(link.length for link in links))
    )


def _of_the_first_clusters(data: Scratch, identity: int) -> Machine | None:
    """Decode the older format: one body, whose CRC is the identity, and payload in any order.
    Return None for the current format."""
    (length,) = _BODY.unpack(data.read(0, _BODY.size))
    at = _BODY.size + length
    if at > data.size or crc32c(body := data.read(_BODY.size, length)) != identity:
        return None
    payloads: dict[int, tuple[int, int]] = {}
    while at < data.size:
        position, size = _HOT.unpack(data.read(at, _HOT.size))
        payloads[position] = at + _HOT.size, size
        at += _HOT.size + size

    def read_payload(position: int, uid: int) -> bytes:
        if position not in payloads:
            raise CorruptData(
                f"a received snapshot has no payload for position {position:#x} of stream {uid}"
            )
        return data.read(*payloads[position])

    return machine_from(body, read_payload)


class _Payloads:
    """Reads hot payload in the order in which it was packed."""

    def __init__(self, data: Scratch, at: int) -> None:
        self._data, self._at = data, at

    def __call__(self, position: int, uid: int) -> bytes:
        found, length = _HOT.unpack(self._data.read(self._at, _HOT.size))
        if found != position:
            raise CorruptData(
                f"a received snapshot has no payload for position {position:#x} of stream {uid}"
            )
        payload = self._data.read(self._at + _HOT.size, length)
        self._at += _HOT.size + length
        return payload


def _merged(data: Scratch, at: int, links: Sequence[SnapshotLink]) -> bytes:
    parts = []
    for link in links:
        body = data.read(at, link.length)
        if crc32c(body) != link.crc:
            raise CorruptData("a part of a snapshot in transfer fails its checksum")
        parts.append(deltas.SnapshotPart(body, link.delta, link.root))
        at += link.length
    return deltas.merge(parts)


class PayloadReader:
    """Reads the payload of hot batches from the journal. It keeps the last entry: the batches of a
    bundle are mostly read one after the other, and each read of an entry reads and checks all of
    it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._entry: JournalEntry | None = None
        self._end = 0  # position behind the last command of the entry

    def __call__(self, position: int, uid: int) -> bytes:
        """Return the payload of the hot batch at a position. Raises CorruptData."""
        if self._entry is None or not self._entry.position <= position < self._end:
            self._entry = _entry_at(self._journal, position)
            self._end = self._entry.position + count_of(self._entry.payload)
        return _batch_in(self._entry, position, uid).payload


def payload_at(journal: Journal, position: int, uid: int) -> bytes:
    """Return the payload of the hot batch at a position. Raises CorruptData."""
    return batch_at(journal, position, uid).payload


def batch_at(journal: Journal, position: int, uid: int) -> Batch:
    """Return the batch of the entry, or bundled command, at a position. Raises CorruptData."""
    return _batch_in(_entry_at(journal, position), position, uid)


def _entry_at(journal: Journal, position: int) -> JournalEntry:
    return journal.segments.read_entry(position, within=BUNDLE_COMMANDS_MAX)


def _batch_in(entry: JournalEntry, position: int, uid: int) -> Batch:
    command = decode_part(entry.payload, position - entry.position)
    if isinstance(command, TxnMarkers | TxnSettle):
        return command.marker()
    batch = command.batch if isinstance(command, Append | Create | Produce) else None
    if not isinstance(batch, Batch):
        raise CorruptData(
            f"journal position {position:#x} holds no batch, but a snapshot refers to it for the stream "
            f"{uid}"
        )
    return batch
