"""The progress of key compaction of a stream."""

from __future__ import annotations

from msgspec import structs

from polynya.stream.features.retention.trimming import extras_of
from polynya.stream.state.model import Compaction, Stream


def compaction_of(stream: Stream) -> Compaction:
    """Return the progress of key compaction; of a stream without any, that of the beginning."""
    found = None if stream.extras is None else stream.extras.compaction
    return Compaction(0) if found is None else found


def note_rewrite(stream: Stream) -> None:
    """Note that a slice lost records."""
    known = compaction_of(stream)
    extras_of(stream).compaction = structs.replace(known, rewrites=known.rewrites + 1)
