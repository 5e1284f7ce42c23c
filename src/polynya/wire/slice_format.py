"""The header and the columns of a slice (docs/formats/packs.md)."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from struct import Struct

from polynya.stream.parts import Encoding

VERSION = 1
# of a slice whose batches are undivided: they may have many records, and no record lengths
KAFKA_VERSION = 2
GAP_VERSION = 3  # of a slice with missing record numbers or stream positions
RECORDS_MAX = 2**32 - 1  # of a slice
SLICE_MAGIC = b"PLS1"
HEADER = Struct("<4sBBBxIII4xQQqqQ")
HEADER_BYTES = HEADER.size
COMPRESSION_AT = 6  # of the byte in the header
BATCH_BYTES = 32  # column bytes per batch
# columns with one number per batch, in order
FIXED = (
    ("append_times_ms", "q"),
    ("record_times_ms", "q"),
    ("batch_records", "I"),
    ("batch_lengths", "I"),
    ("batch_crcs", "I"),
    ("batch_flags", "I"),
)
# further columns of `GAP_VERSION`; in other slices they are those of the records and bytes
SPANS = (("record_spans", "I"), ("byte_spans", "I"))
SPAN_BYTES = 8


def bytes_of(numbers: array[int]) -> bytes:
    """Encode a column, little-endian."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def dated(own_ms: int, appended_ms: int) -> int:
    """Return the time of a batch: its own, or that of its append."""
    return own_ms or appended_ms


def version_of(encoding: int) -> int:
    """Return the version of a slice that lacks no numbers."""
    return KAFKA_VERSION if encoding == Encoding.KAFKA else VERSION


def any_of(flags: Iterable[int]) -> int:
    """Return the flags that any of the batches has."""
    found = 0
    for each in set(flags):
        found |= each
    return found
