"""The memory that appends take while they wait: for an evicted stream, a profile, a rollover."""

from __future__ import annotations

from polynya.stream.parts import Batch

COST = 512  # assumed bytes of a waiting command, besides its payload


def size_of(batch: Batch | None) -> int:
    """Return the assumed bytes of a waiting command with this batch."""
    return COST + (0 if batch is None else len(batch.payload))
