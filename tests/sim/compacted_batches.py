"""Batches of keyed records in the compacted world (sim/compacted.py), and what readers get of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack_into

import google_crc32c
from worlds.compaction import with_codec

from polynya.wire.kafka.batches import Record, build_batch, header_of

Kept = dict[int, tuple[str, str]]  # offset -> the key and the text of a record
PRODUCER = 1 << 40  # no transactional one


def keyed_batch(
    pairs: Sequence[tuple[str, str]],
    deleted: set[str],
    producer: tuple[int, int, int],
    *,
    codec: int = 0,
    attributes: int = 0,
) -> bytes:
    """Return a batch of (key, value); a deleting record has its text in a header."""
    records = [
        Record(key.encode() or None, None, 1000, (("text", value.encode()),))
        if value in deleted
        else Record(key.encode() or None, value.encode(), 1000)
        for key, value in pairs
    ]
    made = bytearray(with_codec(build_batch(records), codec))
    pack_into(">h", made, 21, header_of(made).attributes | attributes)
    pack_into(">qhi", made, 43, *producer)
    pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


def missing_of(
    written: Iterable[tuple[int, tuple[str, str]]], found: Kept, deleted: set[str]
) -> str:
    """Return what a reader should have found of the records of one writer and did not; "": nothing.
    Of each key that is the last record, or nothing if that deletes it; and all without a key."""
    model = sorted(written)
    for offset, pair in model:
        if not pair[0] and found.get(offset) != pair:
            return f"{pair[1]} at {offset}, which has no key"
    wanted = {key: (offset, text) for offset, (key, text) in model if key}
    got = {key: (offset, text) for offset, (key, text) in sorted(found.items()) if key}
    for key, last in wanted.items():
        if got.get(key) != last and not (last[1] in deleted and key not in got):
            return f"{last[1]} at {last[0]} as the last of {key}: that is {got.get(key)}"
    return ""
