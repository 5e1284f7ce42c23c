"""Markers of transactions that are no part of an object: their entries in an index have all of them.

A diskless stream has nothing in memory, so a marker cannot wait for a slice there. Its entry names no
pack, and a reader of its slice gets one that is made here.
"""

from __future__ import annotations

from polynya.stream.features.markers.control_batch import of_inline_entry, stored
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.slice_building import build_slice
from polynya.wire.slices import Slice, built_slice


def slice_of(cold: ColdSlice) -> Slice:
    """Return the slice of an entry that is a marker itself, with its one batch."""
    batch = stored(of_inline_entry(cold))
    hot = HotBatch(
        cold.record,
        cold.byte,
        batch.records,
        batch.payload,
        b"",
        batch.crc,
        cold.time_ms,
        batch.record_time_ms_max,
        batch.encoding,
        0,
        flags=batch.flags,
    )
    _, parts = build_slice(Encoding.KAFKA, cold.record, cold.byte, [hot])
    return built_slice(parts)
