"""Control batches: Kafka's record batch of one record that says how a transaction ended.

The time in it is that of the coordinator's decision. So the bytes are the same in every partition,
whenever the marker arrives there.
"""

from __future__ import annotations

from struct import Struct

from google_crc32c import value as crc32c

from polynya.stream.parts import (
    CONTROL,
    INLINE,
    INLINE_COMMIT,
    TRANSACTIONAL,
    Batch,
    ColdSlice,
    Encoding,
)

# base offset, length, leader epoch, magic, checksum of what follows
_HEAD = Struct(">qiibI")
# attributes, last offset delta, base time, largest time, producer, epoch, first sequence, records
_BODY = Struct(">hiqqqhii")
_TIME = Struct(">q")
_TIME_AT = 27
_ATTRIBUTES = 0x30  # transactional, control
_MAGIC = 2
# a record of 16 bytes: attributes, time and offset deltas 0; a key of 4 bytes, which are version 0
# and the type (0 abort, 1 commit); a value of 6, which are version 0 and the coordinator's epoch 0;
# no headers
_RECORDS = {
    commit: bytes((32, 0, 0, 0, 8, 0, 0, 0, int(commit), 12, 0, 0, 0, 0, 0, 0, 0))
    for commit in (False, True)
}
MARKER_BYTES = _HEAD.size + _BODY.size + len(_RECORDS[True])
_U32 = 2**32 - 1
_LENGTH = MARKER_BYTES - 12  # without the base offset and the length


def control_batch(producer: int, epoch: int, *, commit: bool, decided_ms: int) -> bytes:
    """Return the marker at the end of a producer's transaction."""
    body = _BODY.pack(_ATTRIBUTES, 0, decided_ms, decided_ms, producer, epoch, -1, 1)
    body += _RECORDS[commit]
    return _HEAD.pack(0, _LENGTH, 0, _MAGIC, crc32c(body)) + body


def decided_ms_of(marker: bytes) -> int:
    """Return the time of the decision that a marker has."""
    decided_ms: int = _TIME.unpack_from(marker, _TIME_AT)[0]
    return decided_ms


def stored(marker: bytes) -> Batch:
    """Return a marker as a stream stores it."""
    flags = TRANSACTIONAL | CONTROL
    return Batch(
        Encoding.KAFKA,
        1,
        marker,
        crc32c(marker),
        flags=flags,
        record_time_ms_max=decided_ms_of(marker),
    )


def inline_entry(
    producer: int, epoch: int, *, commit: bool, decided_ms: int, at: tuple[int, int], now_ms: int
) -> ColdSlice:
    """Return a marker as an entry of an index: `offset` and `stored` have the producer, `crc` has
    its epoch. `at`: its record and byte."""
    record, byte = at
    flags = TRANSACTIONAL | CONTROL | (INLINE_COMMIT if commit else 0)
    return ColdSlice(
        record,
        byte,
        1,
        MARKER_BYTES,
        "",
        producer >> 32,
        producer & _U32,
        epoch,
        now_ms,
        INLINE,
        decided_ms,
        flags=flags,
        batches=1,
    )


def of_inline_entry(cold: ColdSlice) -> bytes:
    """Return the marker that an entry is."""
    return control_batch(
        cold.offset << 32 | cold.stored,
        cold.crc,
        commit=bool(cold.flags & INLINE_COMMIT),
        decided_ms=cold.record_time_ms_max,
    )
