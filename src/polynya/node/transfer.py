"""A group's snapshot as it travels to a member that is far behind: the bodies of its chain, and the hot payload that these leave in the journal
(docs/formats/snapshots.md, Transfer). Both ends keep it in a file: what they have in memory at a time does not grow with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct

from google_crc32c import extend
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.node.chains import identity_of, transfer_head_bytes
from polynya.replica.log import decode_command
from polynya.stream import deltas
from polynya.stream.commands import Append, Batch, Create
from polynya.stream.machine import Machine
from polynya.stream.snapshots import decode_image
from polynya.wal import Journal
from polynya.wal.scratch import Scratch
from polynya.wal.snapshots import Link, SnapshotStore

PIECE_BYTES = 1 << 20
_COUNT = Struct("<I")
_LINK = Struct("<IIQQ")  # CRC of the body, 1 if it is a delta, its length, index of what it builds on
_HOT = Struct("<QI")  # place in the sender's journal, length


def pack_transfer(links: Sequence[Link], store: SnapshotStore, journal: Journal, into: Scratch) -> None:
    """Raises CorruptData or OSError when the snapshot, or a payload, is there no more, DiskFull. For a thread."""
    into.append(_COUNT.pack(len(links)), *(_LINK.pack(link.crc, link.delta, link.length, link.base) for link in links))
    for link in links:
        crc = 0
        for offset in range(0, link.length, PIECE_BYTES):
            piece = store.read(link, offset, PIECE_BYTES)
            crc = extend(crc, piece)
            into.append(piece)
        if crc != link.crc:
            raise CorruptData(f"the snapshot of group {link.group} at {link.index} was written anew")
    for stream in decode_image(_merged(into, links)).streams:
        for batch in reversed(stream.hot or ()):
            payload = payload_at(journal, batch.place, stream.uid)
            into.append(_HOT.pack(batch.place, len(payload)), payload)


def unpack_transfer(data: Scratch, identity: int) -> Machine:
    """The machine, with all its payload; the places in it are the sender's. Raises CorruptData, OSError. For a thread."""
    try:
        (count,) = _COUNT.unpack(data.read(0, _COUNT.size))
        heads = data.read(_COUNT.size, transfer_head_bytes(count) - _COUNT.size)
        links = [Link(0, 0, 0, length, crc, bool(delta), base) for crc, delta, length, base in _LINK.iter_unpack(heads)]
        if identity_of(links) != identity:
            raise CorruptData("a snapshot that another node sent has another checksum than it should")
        machine = Machine.restore(_merged(data, links), _Payloads(data, transfer_head_bytes(count) + sum(link.length for link in links)))
    except (EOFError, struct.error) as error:
        raise CorruptData(f"a snapshot that another node sent cannot be read: {error}") from error
    for _, hot in machine.flush_candidates():
        for batch in hot:
            if crc32c(batch.payload) != batch.crc:
                raise CorruptData("payload in a snapshot that another node sent has another checksum than it should")
    return machine


class _Payloads:
    """Hot payload, in the order in which it was packed."""

    def __init__(self, data: Scratch, at: int) -> None:
        self._data, self._at = data, at

    def __call__(self, place: int, uid: int) -> bytes:
        found, length = _HOT.unpack(self._data.read(self._at, _HOT.size))
        if found != place:
            raise CorruptData(f"a snapshot that another node sent has no payload for place {place:#x} of stream {uid}")
        payload = self._data.read(self._at + _HOT.size, length)
        self._at += _HOT.size + length
        return payload


def _merged(data: Scratch, links: Sequence[Link]) -> bytes:
    parts = []
    at = transfer_head_bytes(len(links))
    for link in links:
        body = data.read(at, link.length)
        if crc32c(body) != link.crc:
            raise CorruptData("a part of a snapshot on its way between nodes has another checksum than it should")
        parts.append(deltas.Part(body, link.delta, link.root))
        at += link.length
    return deltas.merge(parts)


def payload_at(journal: Journal, place: int, uid: int) -> bytes:
    """Of the hot batch at a place. Raises CorruptData."""
    command = decode_command(journal.read(place))
    batch = command.batch if isinstance(command, Append | Create) else None
    if not isinstance(batch, Batch):
        raise CorruptData(f"journal place {place:#x} holds no batch, but a snapshot says so of the stream {uid}")
    return batch.payload
