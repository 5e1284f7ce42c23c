"""A group's snapshot as it travels to a member that is far behind: the file's body, and the hot payload that the body leaves in the journal
(docs/formats/snapshots.md, Transfer)."""

from __future__ import annotations

import struct
from struct import Struct

from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.replica.log import decode_command
from polynya.stream.commands import Append, Batch, Create
from polynya.stream.machine import Machine
from polynya.wal import Journal

_LENGTH = Struct("<Q")
_HOT = Struct("<QI")  # place in the sender's journal, length


def transfer_size(body_bytes: int, machine: Machine) -> int:
    """Of the machine whose snapshot the body is."""
    batches = sum(len(hot) for _, hot in machine.flush_candidates())
    return _LENGTH.size + body_bytes + batches * _HOT.size + machine.hot_bytes


def pack_transfer(body: bytes, journal: Journal) -> bytes:
    """Raises CorruptData when the journal has a payload no more. For a thread."""
    parts = [_LENGTH.pack(len(body)), body]

    def read_payload(place: int, uid: int) -> bytes:
        payload = payload_at(journal, place, uid)
        parts.append(_HOT.pack(place, len(payload)) + payload)
        return payload

    Machine.restore(body, read_payload)
    return b"".join(parts)


def unpack_transfer(data: bytes, identity: int) -> Machine:
    """The machine, with all its payload; the places in it are the sender's. `identity` is the body's CRC. Raises CorruptData. For a thread."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        body = data[_LENGTH.size : at]
        if crc32c(body) != identity:
            raise CorruptData("a snapshot that another node sent has another checksum than it should")
        payloads = {}
        while at < len(data):
            place, size = _HOT.unpack_from(data, at)
            at += _HOT.size
            payloads[place] = data[at : at + size]
            at += size
        machine = Machine.restore(body, lambda place, uid: payloads[place])
        for _, hot in machine.flush_candidates():
            for batch in hot:
                if crc32c(batch.payload) != batch.crc:
                    raise CorruptData("payload in a snapshot that another node sent has another checksum than it should")
        return machine
    except (KeyError, struct.error) as error:
        raise CorruptData(f"a snapshot that another node sent cannot be read: {error}") from error


def payload_at(journal: Journal, place: int, uid: int) -> bytes:
    """Of the hot batch at a place. Raises CorruptData."""
    command = decode_command(journal.read(place))
    batch = command.batch if isinstance(command, Append | Create) else None
    if not isinstance(batch, Batch):
        raise CorruptData(f"journal place {place:#x} holds no batch, but a snapshot says so of the stream {uid}")
    return batch.payload
