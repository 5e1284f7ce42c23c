"""Snapshots of streams in a restored or recovered state: those without a body are dropped, and so are
bodies without a stream."""

from __future__ import annotations

from polynya.base.names import companion_of, owner_of
from polynya.stream.features.retention.trimming import tidy
from polynya.stream.parts import Mark
from polynya.stream.snapshots.encode import Image
from polynya.stream.snapshots.restore_history import StreamLoss
from polynya.stream.state.model import Stream


def orphans(image: Image) -> list[Stream]:
    """Return the companions whose stream is not in the state, or only until its forks are gone."""
    owners = {stream.name for stream in image.streams if not stream.deleted}
    return [
        stream
        for stream in image.streams
        if (owner := owner_of(stream.name)) and owner not in owners
    ]


def drop_bodiless(image: Image) -> list[StreamLoss]:
    """Drop the marks behind the tail of their stream, and those whose body the companion has not.
    Returns them as losses."""
    by_name = {stream.name: stream for stream in image.streams if owner_of(stream.name)}
    notes: list[StreamLoss] = []
    for stream in image.streams:
        extras = stream.extras
        if extras is None or extras.marks is None:
            continue
        own = by_name.get(companion_of(stream.name))
        kept = [mark for mark in extras.marks if _is_whole(mark, stream, own)]
        notes += [
            StreamLoss(
                stream.name,
                stream.uid,
                mark.record,
                mark.record,
                f"the snapshot at record {mark.record} existed only on the lost disks",
            )
            for mark in extras.marks
            if mark not in kept
        ]
        extras.marks = kept or None
        tidy(stream)
    return notes


def _is_whole(mark: Mark, stream: Stream, own: Stream | None) -> bool:
    if mark.record > stream.next_record:
        return False
    return not mark.parts or (
        own is not None
        and all(
            own.first_record <= record < own.next_record
            and own.first_byte <= byte
            and byte + size <= own.next_byte
            for record, byte, size in mark.parts
        )
    )
