"""Slices in which record numbers and stream positions are missing, beside a plain list of the
batches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec import structs
from worlds.slices import Choice, StoredRuns

from polynya.stream.parts import Encoding
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.slice_building import build_slice, gap, merge_slices
from polynya.wire.slices import Slice, SliceMeta, parse_slice

Gap = tuple[int, int]  # numbers and positions
Run = tuple[list[Choice], Gap]  # batches, and what is missing behind them

gaps = st.tuples(st.integers(0, 5), st.integers(0, 9))
runs = st.lists(
    st.tuples(st.lists(st.tuples(st.just(True), st.integers(1, 3)), min_size=1, max_size=5), gaps),
    min_size=1,
    max_size=5,
)


class GappedRuns:
    """Slices of a stream, each with the gap behind it. `entries` are their index entries,
    `batches` the list that readers must see."""

    def __init__(self, some: Sequence[Run], encoding: int, *, at: tuple[int, int] = (0, 0)) -> None:
        self.encoding = encoding
        self.entries: list[ColdSlice] = []
        self.batches: list[HotBatch] = []
        self.slices: list[Slice] = []
        self._stored: dict[str, bytes] = {}
        record, byte = at
        for number, (choice, (records, length)) in enumerate(some):
            stored = StoredRuns([choice], encoding, at=(record, byte))
            (cold,) = stored.entries
            self.batches += stored.batches
            cold = structs.replace(
                cold,
                pack=f"pack-{number}",
                records=cold.records + records,
                length=cold.length + length,
                missing_records=records,
                missing_bytes=length,
            )
            self._stored[cold.pack] = stored.stored(cold)
            self.slices.append(parse_slice(stored.stored(cold), cold.crc))
            self.entries.append(cold)
            record, byte = record + cold.records, byte + cold.length
        self.at, self.end = at, (record, byte)

    def stored(self, cold: ColdSlice) -> bytes:
        return self._stored[cold.pack]

    def merged(self, begin: int = 0, end: int | None = None) -> tuple[SliceMeta, bytes]:
        """Return the slice that a merge of some of the slices gives."""
        entries = self.entries[begin:end]
        parts = []
        for cold, each in zip(entries, self.slices[begin:end], strict=True):
            parts.append(each)
            if cold is not entries[-1] and (cold.missing_records or cold.missing_bytes):
                time_ms = each.append_times_ms[-1]
                parts.append(gap(self.encoding, time_ms, cold.missing_records, cold.missing_bytes))
        meta, pieces = merge_slices(entries[0].record, entries[0].byte, parts)
        return meta, b"".join(pieces)


def spread(batches: Sequence[HotBatch], spans: Sequence[Gap]) -> Slice:
    """Return a slice of these batches with spans wider than their content."""
    meta, parts = build_slice(batches[0].encoding, -1, -1, batches)
    plain = parse_slice(b"".join(parts), meta.crc)
    lengths = None
    if batches[0].encoding != Encoding.KAFKA:
        lengths = plain.record_lengths or plain.batch_lengths
    return Slice(
        plain.encoding,
        (-1, -1),
        [
            plain.append_times_ms,
            plain.record_times_ms,
            plain.batch_records,
            plain.batch_lengths,
            plain.batch_crcs,
            plain.batch_flags,
            memoryview(array("I", [span[0] for span in spans])),
            memoryview(array("I", [span[1] for span in spans])),
        ],
        lengths,
        plain.payload,
        lambda: plain.producers,
    )
