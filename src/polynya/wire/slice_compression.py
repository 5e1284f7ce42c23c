"""Compress the payload of a built slice; its header and columns stay plain (docs/formats/packs.md)."""

from __future__ import annotations

from itertools import accumulate

import google_crc32c
from msgspec import structs

from polynya.stream.parts import COMPRESSED, Encoding
from polynya.wire.payloads import SAVED_PER_BYTE, ZSTD, compressed
from polynya.wire.slices import COMPRESSION_AT, SliceMeta, batch_lengths_in

_CODEC_AT, _CODECS = 22, 0x07  # the codec in the attributes of a Kafka batch

BuiltSlice = tuple[SliceMeta, list[bytes]]


def pressed(built: BuiltSlice, level: int) -> BuiltSlice:
    """Return the slice with its payload compressed at this level of zstd.

    It is unchanged if that saves less than a tenth, for level 0, and where Kafka's producers have
    compressed most of it."""
    meta, (front, *pieces) = built
    if not level:
        return built
    payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if meta.encoding == Encoding.KAFKA and _is_encoded(meta, front, payload):
        return built
    stored = compressed(payload, level)
    if stored is None:
        return built
    front = front[:COMPRESSION_AT] + bytes((ZSTD,)) + front[COMPRESSION_AT + 1 :]
    return structs.replace(
        meta,
        stored=len(front) + len(stored),
        crc=google_crc32c.extend(google_crc32c.value(front), stored),
        flags=meta.flags | COMPRESSED,
    ), [front, stored]


def _is_encoded(meta: SliceMeta, front: bytes, payload: bytes) -> bool:
    """Report whether so much of the payload are batches with a codec that no tenth can be saved."""
    lengths = batch_lengths_in(front, meta.batches)
    plain = sum(
        length
        for begin, length in zip(accumulate(lengths, initial=0), lengths, strict=False)
        if length > _CODEC_AT and not payload[begin + _CODEC_AT] & _CODECS
    )
    return plain * SAVED_PER_BYTE < meta.length
