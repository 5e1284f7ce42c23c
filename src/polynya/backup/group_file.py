"""The file of one group: its state and its hot payload at one moment (docs/formats/backup.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import ConfigError, CorruptData
from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import machine_from
from polynya.stream.state.model import HotBatch

FORMAT_VERSION = 1
HEADER_BYTES = 64

_MAGIC = b"POLYNYAG"
_HEADER = Struct("<8sIIQQQQIII")
_HOT = Struct("<QII")  # position, length, CRC of one hot batch


class Header(msgspec.Struct, frozen=True):
    """The header of a group file. `log_ms` is in log time."""

    group: int
    term: int
    index: int
    log_ms: int
    state_bytes: int
    state_crc: int
    hot: int  # number of hot batches


class GroupFile(msgspec.Struct, frozen=True):
    """A parsed group file. `hot` maps a position to its payload."""

    header: Header
    state: bytes
    hot: Mapping[int, bytes]


def pack_header(header: Header) -> bytes:
    head = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        header.group,
        header.term,
        header.index,
        header.log_ms,
        header.state_bytes,
        header.state_crc,
        header.hot,
        0,
    )
    return head + int(crc32c(head)).to_bytes(4, "little")


def hot_pieces(batches: Iterable[HotBatch]) -> list[bytes]:
    """Return two pieces for each batch: its header and its payload, which is not copied."""
    found: list[bytes] = []
    for batch in batches:
        found += (_HOT.pack(batch.position, len(batch.payload), batch.crc), batch.payload)
    return found


def parse(data: bytes, group: int) -> GroupFile:
    """Parse a group file. Raises CorruptData naming the fault, or ConfigError for a format of
    another release."""
    header = parse_header(data[:HEADER_BYTES])
    if header.group != group:
        raise CorruptData(f"the file belongs to group {header.group}, not to group {group}")
    end = HEADER_BYTES + header.state_bytes
    state = data[HEADER_BYTES:end]
    if len(state) != header.state_bytes or crc32c(state) != header.state_crc:
        raise CorruptData("the checksum of the state is wrong")
    hot: dict[int, bytes] = {}
    count = 0
    while end < len(data):
        if end + _HOT.size > len(data):
            raise CorruptData("the file ends inside a batch")
        position, length, crc = _HOT.unpack_from(data, end)
        payload = data[end + _HOT.size : end + _HOT.size + length]
        if len(payload) != length or crc32c(payload) != crc:
            raise CorruptData(f"the checksum of the batch at byte {end} is wrong")
        # the marker of a transaction is one batch in all of its streams, at one position
        if hot.setdefault(position, payload) != payload:
            raise CorruptData(f"two batches differ at position {position}")
        count += 1
        end += _HOT.size + length
    if count != header.hot:
        raise CorruptData(f"the file has {count} batches; its header says {header.hot}")
    return GroupFile(header, state, hot)


def parse_header(data: bytes) -> Header:
    """Parse the first 64 bytes. Raises CorruptData, ConfigError."""
    head = data[: HEADER_BYTES - 4]
    if len(data) < HEADER_BYTES or not head.startswith(_MAGIC):
        raise CorruptData("the file is not a group file")
    if crc32c(head) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        raise CorruptData("the checksum of the header is wrong")
    _, version, group, term, index, log_ms, length, crc, hot, _ = _HEADER.unpack(head)
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"a group file has format {version}; this release reads format {FORMAT_VERSION}: use "
            "the release that wrote it"
        )
    return Header(group, term, index, log_ms, length, crc, hot)


def machine_of(file: GroupFile) -> Machine:
    """Restore the group's state machine with its payload. Raises CorruptData if a batch is missing
    or does not match the state."""
    try:
        machine = machine_from(file.state, lambda position, uid: file.hot[position])
    except KeyError as position:
        raise CorruptData(f"the batch at position {position} is missing") from None
    for stream, hot in machine.directory.flush_candidates():
        for batch in hot:
            if crc32c(batch.payload) != batch.crc:
                raise CorruptData(
                    f"the batch of {stream.name} at record {batch.record} differs from the "
                    "appended data"
                )
    return machine
