"""Key compaction: MB/s of the two steps of a pass on one core, by the size of values.

    PYTHONPATH=src python bench/key_compaction.py [--mb 64] [--sizes 1024,100] [--keys 50000]

The slices are in memory, batches of 64 records without a codec, and what is written is compressed with
zstd as a node does. A node also fetches and puts them, in another process.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import google_crc32c

from polynya.base.limits import MIB, SLICE_BYTES_MAX
from polynya.cold.compaction.compactor import MAP_BYTES, NEVER
from polynya.cold.compaction.key_map import SLOT_BYTES
from polynya.cold.compaction.work import (
    CompactionWork,
    MapBegin,
    MapPiece,
    Piece,
    RewriteBegin,
    RewritePiece,
)
from polynya.cold.settings import ZSTD_LEVEL
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.pack import pressed
from polynya.wire.slice_building import build_slice

BATCH_RECORDS = 64
TIME_MS = 1_700_000_000_000


def pieces(size: int, megabytes: int, keys: int) -> Iterator[Piece]:
    """Yield slices of records with random keys and values of hexadecimal digits."""
    rng = random.Random(7)
    record = byte = 0
    while byte < megabytes * MIB:
        first, batches, length = (record, byte), list[HotBatch](), 0
        while length < SLICE_BYTES_MAX:
            payload = build_batch(
                Record(
                    b"key-%08d" % rng.randrange(keys),
                    rng.randbytes(size // 2).hex().encode(),
                    TIME_MS,
                )
                for _ in range(BATCH_RECORDS)
            )
            crc = google_crc32c.value(payload)
            batches.append(
                HotBatch(
                    record, byte, BATCH_RECORDS, payload, b"", crc, 1, TIME_MS, Encoding.KAFKA, 0
                )
            )
            record, byte, length = (
                record + BATCH_RECORDS,
                byte + len(payload),
                length + len(payload),
            )
        meta, parts = pressed(build_slice(Encoding.KAFKA, *first, batches), ZSTD_LEVEL)
        data = b"".join(parts)
        entry = ColdSlice(
            *first,
            record - first[0],
            byte - first[1],
            "p",
            0,
            len(data),
            meta.crc,
            encoding=Encoding.KAFKA,
            flags=meta.flags,
            batches=meta.batches,
        )
        yield Piece(entry, data)


def measure(size: int, megabytes: int, keys: int) -> str:
    """Return the rates of one size of values, as a line."""
    listed = list(pieces(size, megabytes, keys))
    total = sum(piece.entry.length for piece in listed) / 1e6
    work = CompactionWork()
    work.run(MapBegin(MAP_BYTES // SLOT_BYTES, bytes(16)))
    began = time.process_time()
    for piece in listed:
        work.run(MapPiece(piece))
    mapped = time.process_time()
    work.run(RewriteBegin(0, 0, NEVER, SLICE_BYTES_MAX, ZSTD_LEVEL))
    made = [each for piece in listed for each in work.run(RewritePiece(piece)).rewritten]
    made += work.run(RewritePiece(None)).rewritten
    ended = time.process_time()
    kept = sum(each.meta.length for each in made if each.meta) / 1e6 / total
    return (
        f"values of {size} B: {total:.0f} MB, map {total / (mapped - began):.0f} MB/s, rewrite "
        f"{total / (ended - mapped):.0f} MB/s, both {total / (ended - began):.0f} MB/s of CPU time; "
        f"{kept:.0%} stay"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--sizes", default="1024,100")
    parser.add_argument("--keys", type=int, default=50_000)
    given = parser.parse_args()
    for size in map(int, given.sizes.split(",")):
        print(measure(size, given.mb, given.keys))


if __name__ == "__main__":
    main()
