"""Slices whose batches are partly refused: what a diskless writer stores, and the index entries of
the accepted runs, beside the plain list of accepted batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby

from google_crc32c import value as crc32c
from hypothesis import strategies as st
from msgspec import structs

from polynya.stream.parts import Encoding
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.pack import PackBuilder
from polynya.wire.slice_building import build_slice

Choice = tuple[bool, int]  # whether a batch is accepted, and its records
PACK = "c1/packs/20231114-22/1-aa"

# of one slice: batches in order; at least one is accepted
choices = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=12).filter(
    lambda some: any(taken for taken, _ in some)
)
encodings = st.sampled_from([Encoding.BYTES, Encoding.JSON, Encoding.KAFKA])


class StoredRuns:
    """One pack with a slice for each list of choices. `entries` are the index, `batches` the list
    that readers must see."""

    def __init__(
        self, slices: Sequence[Sequence[Choice]], encoding: int, *, at: tuple[int, int] = (0, 0)
    ) -> None:
        self.entries: list[ColdSlice] = []
        self.batches: list[HotBatch] = []
        builder = PackBuilder()
        record, byte = at
        for number, choice in enumerate(slices):
            raw = [_batch(number, at, records, encoding) for at, (_, records) in enumerate(choice)]
            entry = builder.add(1, 1, build_slice(encoding, -1, -1, raw))
            for taken, run in groupby(range(len(raw)), key=lambda at: choice[at][0]):
                if not taken:
                    continue
                numbers = list(run)
                first = (record, byte)
                for at_batch in numbers:
                    batch = structs.replace(raw[at_batch], record=record, byte=byte)
                    self.batches.append(batch)
                    record, byte = record + batch.records, byte + len(batch.payload)
                cold = entry.at(PACK, *first)
                self.entries.append(
                    structs.replace(
                        cold,
                        records=record - first[0],
                        length=byte - first[1],
                        first_batch=numbers[0],
                        batches=len(numbers),
                        time_ms=raw[numbers[0]].time_ms,
                    )
                )
        self.end = (record, byte)
        parts, _ = builder.finish(owner_group=1, created_ms=0)
        self.data = b"".join(parts)

    def stored(self, cold: ColdSlice) -> bytes:
        """Return the stored bytes of an entry's slice."""
        return self.data[cold.offset : cold.offset + cold.stored]

    @property
    def payload(self) -> bytes:
        return b"".join(batch.payload for batch in self.batches)


def _batch(number: int, at: int, records: int, encoding: int) -> HotBatch:
    values = [b'"%d.%d.%d"' % (number, at, each) * (1 + at % 3) for each in range(records)]
    if encoding == Encoding.JSON:
        values = [b"[%d,%d,%d]," % (number, at, each) for each in range(records)]
    payload = b"".join(values)
    divided = records > 1 and encoding != Encoding.KAFKA
    return HotBatch(
        0,
        0,
        records,
        payload,
        struct.pack(f"<{records}I", *map(len, values)) if divided else b"",
        crc32c(payload),
        1_000 + 10 * number + at,
        2_000 - at if at % 2 else 0,
        encoding,
        0,
        (f"p{at % 2}", 1, at) if at % 3 else None,
        at % 2,
    )


def without_producer(batches: Sequence[HotBatch]) -> list[HotBatch]:
    """Return the batches as a decoded slice gives them."""
    return [structs.replace(batch, producer=None) for batch in batches]
