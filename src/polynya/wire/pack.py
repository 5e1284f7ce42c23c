"""The pack format: slices of many streams in one immutable object, with a footer index
(docs/formats/packs.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct

import google_crc32c
import msgspec
from msgspec import structs

from polynya.base.errors import CorruptData
from polynya.base.msgpack import UNREADABLE
from polynya.stream.parts import COMPRESSED, Encoding
from polynya.stream.state.model import ColdSlice
from polynya.wire.payloads import SAVED_PER_BYTE, ZSTD, compressed
from polynya.wire.slice_format import COMPRESSION_AT, HEADER_BYTES
from polynya.wire.slices import SliceMeta, batch_lengths_in

MAGIC = b"PLYNPAK1"
VERSION = 1
TAIL_BYTES = 24
FOOTER_GUESS_BYTES = 64 * 1024  # size of the first read from the end of an object
_TAIL = Struct("<IIQ8s")
_LENGTHS = Struct("<IQ")
_ZEROS = bytes(8)
_CODEC_AT, _CODECS = 22, 0x07  # the codec in the attributes of a Kafka batch

SliceParts = tuple[SliceMeta, list[bytes]]  # as `build_slice` gives them


class PackEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A slice as listed in the footer. `base_…` is -1 if it was unknown when written."""

    uid: int
    group: int
    records: int
    length: int  # bytes of payload
    offset: int  # of the slice in the object
    stored: int  # bytes of the slice
    append_time_ms_max: int
    record_time_ms_max: int
    crc: int  # CRC-32C of the stored bytes
    encoding: int
    base_record: int = -1
    base_byte: int = -1
    path: str = ""
    content_type: str = ""
    flags: int = 0  # of all batches; 16: COMPRESSED
    batches: int = 0  # 0: not known
    missing_records: int = 0  # between its first and last
    missing_bytes: int = 0

    def at(
        self,
        pack: str,
        record: int,
        byte: int,
        *,
        time_ms: int = 0,
        missing_records: int = 0,
        missing_bytes: int = 0,
    ) -> ColdSlice:
        """Return the index entry of this slice in `pack`, at this position of its stream, with what
        is missing behind it."""
        missing_records += self.missing_records
        missing_bytes += self.missing_bytes
        return ColdSlice(
            record,
            byte,
            self.records + missing_records,
            self.length + missing_bytes,
            pack,
            self.offset,
            self.stored,
            self.crc,
            time_ms,
            self.encoding,
            self.record_time_ms_max,
            missing_records,
            missing_bytes,
            flags=self.flags,
            batches=self.batches,
        )


class Footer(msgspec.Struct, array_like=True, frozen=True):
    """The index of a pack."""

    version: int
    owner_group: int
    created_ms: int
    entries: list[PackEntry]


class ShortTail(Exception):
    """The footer exceeds the given bytes: fetch the last `wanted` bytes of the object."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"the footer needs the last {wanted} bytes")
        self.wanted = wanted


def pack_key(cluster_id: str, *, owner_group: int, now_ms: int, random: bytes) -> str:
    """Return the key of a new pack. `random` must be 16 new random bytes."""
    if len(random) != 16:
        raise ValueError("a pack's key needs 128 random bits")
    hour = time.strftime("%Y%m%d-%H", time.gmtime(now_ms // 1000))
    return f"{cluster_id}/packs/{hour}/{owner_group}-{random.hex()}"


def owner_group_of(key: str) -> int | None:
    """Return the owner group in a pack's key; None for other keys."""
    group = key.rsplit("/", 1)[-1].partition("-")[0]
    return int(group) if group.isascii() and group.isdigit() else None


def pressed(built: SliceParts, level: int) -> SliceParts:
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


class PackBuilder:
    """A builder of packs: `add` slices, then `finish`."""

    def __init__(self) -> None:
        self.size = len(MAGIC)  # bytes so far
        self._parts: list[bytes] = [MAGIC]
        self._entries: list[PackEntry] = []

    def add(
        self,
        uid: int,
        group: int,
        built: SliceParts,
        *,
        path: str = "",
        content_type: str = "",
    ) -> PackEntry:
        """Append a slice made by `build_slice`."""
        meta, parts = built
        if padding := -self.size % 8:
            self._parts.append(_ZEROS[:padding])
            self.size += padding
        entry = PackEntry(
            uid,
            group,
            meta.records,
            meta.length,
            self.size,
            meta.stored,
            meta.append_time_ms_max,
            meta.record_time_ms_max,
            meta.crc,
            meta.encoding,
            meta.base_record,
            meta.base_byte,
            path,
            content_type,
            meta.flags,
            meta.batches,
            meta.missing_records,
            meta.missing_bytes,
        )
        self._parts += parts
        self.size += meta.stored
        self._entries.append(entry)
        return entry

    def finish(self, *, owner_group: int, created_ms: int) -> tuple[list[bytes], list[PackEntry]]:
        """Return the parts of the whole object, and its entries in order."""
        footer = msgspec.msgpack.encode(Footer(VERSION, owner_group, created_ms, self._entries))
        total = self.size + len(footer) + TAIL_BYTES
        tail = _TAIL.pack(len(footer), _footer_crc(footer, total), total, MAGIC)
        return [*self._parts, footer, tail], self._entries


def read_footer(tail: bytes) -> Footer:
    """Parse the footer from the last bytes of an object (`FOOTER_GUESS_BYTES`, or all of a shorter
    one).

    Raises ShortTail if more bytes are needed, CorruptData if the object is damaged or not a pack.
    """
    if len(tail) < TAIL_BYTES:
        raise CorruptData(f"a pack has at least {TAIL_BYTES} bytes, this has {len(tail)}")
    length, crc, total, magic = _TAIL.unpack_from(tail, len(tail) - TAIL_BYTES)
    if magic != MAGIC:
        raise CorruptData("the object has no pack footer")
    if length + TAIL_BYTES + len(MAGIC) > total:
        raise CorruptData("the footer is longer than the object")
    if length + TAIL_BYTES > len(tail):
        raise ShortTail(length + TAIL_BYTES)
    encoded = tail[-TAIL_BYTES - length : -TAIL_BYTES]
    if _footer_crc(encoded, total) != crc:
        raise CorruptData("the footer's checksum is wrong")
    try:
        footer = msgspec.msgpack.decode(encoded, type=Footer)
    except UNREADABLE as fault:
        raise CorruptData(f"the footer cannot be decoded: {fault}") from None
    if footer.version != VERSION:
        raise CorruptData(f"pack version {footer.version} is not supported")
    _check_offsets(footer.entries, total - TAIL_BYTES - length)
    return footer


def damaged_slices(pack: bytes) -> list[int]:
    """Verify a whole object. Return the offsets of damaged slices, or [-1] if the footer is
    damaged."""
    try:
        footer = read_footer(pack)
    except (CorruptData, ShortTail):
        return [-1]
    view = memoryview(pack)
    return [
        entry.offset
        for entry in footer.entries
        if google_crc32c.value(bytes(view[entry.offset : entry.offset + entry.stored])) != entry.crc
    ]


def _is_encoded(meta: SliceMeta, front: bytes, payload: bytes) -> bool:
    """Report whether so much of the payload are batches with a codec that no tenth can be saved."""
    lengths = batch_lengths_in(front, meta.batches)
    plain = sum(
        length
        for begin, length in zip(accumulate(lengths, initial=0), lengths, strict=False)
        if length > _CODEC_AT and not payload[begin + _CODEC_AT] & _CODECS
    )
    return plain * SAVED_PER_BYTE < meta.length


def _footer_crc(footer: bytes, total: int) -> int:
    crc: int = google_crc32c.extend(google_crc32c.value(footer), _LENGTHS.pack(len(footer), total))
    return crc


def _check_offsets(entries: Sequence[PackEntry], end: int) -> None:
    at = len(MAGIC)
    for entry in entries:
        if entry.offset < at or entry.stored < HEADER_BYTES or entry.offset + entry.stored > end:
            raise CorruptData("a footer entry lies outside of the pack")
        at = entry.offset + entry.stored
