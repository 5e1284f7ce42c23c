"""Journal recovery at start: list the segments, find the end of the newest one, and tell a torn
tail from corruption."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from polynya.base.errors import ConfigError, CorruptData
from polynya.wal.files import Files
from polynya.wal.frames import (
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    Frame,
    FrameKind,
    SegmentHeader,
    find_marks,
    parse_frame,
    parse_segment_header,
)

SUFFIX = ".journal"
OFFSET_MASK = (1 << 32) - 1
_ADVICE = (
    "Nothing was cut or changed. Keep a copy of the folder, check the disk, and put the file back "
    "from a backup or from another copy; "
    "everything before this position is readable"
)


class Segment(msgspec.Struct, gc=False):
    """One segment. `end` is the offset after its last frame, `previous_end` a position,
    `final_mark` the final mark of the previous segment."""

    number: int
    nonce: int
    seed: int
    previous_end: int
    end: int
    final_mark: bytes = b""


class TornTail(msgspec.Struct, frozen=True):
    """A torn tail that was cut; it was never acknowledged. `length` excludes trailing zeros."""

    path: Path
    offset: int
    length: int
    reason: str


class Recovered(msgspec.Struct):
    """The result of recovery. `marked`: the highest position that a mark names. `entries_end`: the
    position after the newest entry.
    `next_number`: the next free segment number. `begun`: the journal's own number."""

    segments: list[Segment]
    next_number: int
    marked: int = 0
    entries_end: int = 0
    cuts: list[TornTail] = []
    begun: int = 0


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"{number:010d}{SUFFIX}"


def corrupt(path: Path, offset: int, why: str) -> CorruptData:
    """Return the error for damage in synced data."""
    return CorruptData(f"journal segment {path} is damaged at offset {offset}: {why}. {_ADVICE}")


def recover(folder: Path, *, journal_id: int, files: Files, begun: bool = False) -> Recovered:
    """Check all headers, walk the newest segment and find its torn tail. `begun`: a segment existed
    before.

    Raises `CorruptData` for damage other than a torn tail, `ConfigError` for another journal,
    `OSError`.
    """
    # the newest segment's name, or the removal of released ones, may not be durable yet
    files.sync_folder(folder)
    numbers = _numbers(folder, files)
    if not numbers:
        if begun:
            raise CorruptData(f"all segments of the journal in {folder} are missing. {_ADVICE}")
        return Recovered([], 1)
    headers = [
        _read_header(segment_path(folder, number), number, journal_id, files)
        for number in numbers[:-1]
    ]
    path = segment_path(folder, numbers[-1])
    data = _read_settled(path, files)
    newest = _parse_header(path, data, numbers[-1], journal_id)
    if newest is not None:
        recovered = Recovered(_chain(folder, [*headers, newest], files), numbers[-1] + 1)
    else:
        if begun and not headers:
            raise corrupt(path, 0, "its header is unreadable, and there is no other segment")
        recovered = Recovered(_chain(folder, headers, files), numbers[-1], cuts=[_torn(path, data)])
        if headers:
            data = _read_settled(segment_path(folder, numbers[-2]), files)
    if recovered.segments:
        _find_end(segment_path(folder, recovered.segments[-1].number), data, recovered)
    if newest is None:
        files.unlink(path)
        files.sync_folder(folder)
    return recovered


def has_segments(folder: Path, files: Files) -> bool:
    """Return whether the directory contains a journal. The directory may be missing."""
    try:
        return bool(_numbers(folder, files))
    except FileNotFoundError:
        return False


def _numbers(folder: Path, files: Files) -> list[int]:
    names = [name.removesuffix(SUFFIX) for name in files.names(folder) if name.endswith(SUFFIX)]
    numbers = sorted(int(name) for name in names if len(name) == 10 and name.isdecimal())
    for number, following in pairwise(numbers):
        if following != number + 1:
            raise CorruptData(
                f"journal segment {segment_path(folder, number + 1)} is missing, but newer ones "
                f"exist. {_ADVICE}"
            )
    return numbers


def _read_header(path: Path, number: int, journal_id: int, files: Files) -> SegmentHeader:
    """Read the header of a segment that has a successor, and so was synced."""
    fd = files.open(path)
    try:
        header = _parse_header(path, files.read(fd, SEGMENT_HEADER_BYTES, 0), number, journal_id)
    finally:
        files.close(fd)
    if header is None:
        raise corrupt(path, 0, "its header is unreadable")
    return header


def _parse_header(path: Path, data: bytes, number: int, journal_id: int) -> SegmentHeader | None:
    header = parse_segment_header(data)
    if isinstance(header, int):
        raise ConfigError(
            f"{path} has journal format {header}; this release reads format {FORMAT_VERSION}: use "
            "the release that wrote it"
        )
    if header is not None and header.journal_id != journal_id:
        raise ConfigError(
            f"{path} belongs to journal {header.journal_id:#x}, not to {journal_id:#x}: the data "
            "directory belongs to another node or core"
        )
    if header is not None and header.number != number:
        raise corrupt(path, 0, f"it is segment {header.number} under another name")
    return header


def _torn(path: Path, data: bytes) -> TornTail:
    """Return the torn tail of a newest segment without a readable header. A crash while it was
    created leaves nothing after the header."""
    if data[SEGMENT_HEADER_BYTES:].strip(b"\0"):
        raise corrupt(
            path,
            0,
            "its header is unreadable, though it was synced before anything was written after it",
        )
    return TornTail(path, 0, len(data.rstrip(b"\0")), "the header of a new segment is incomplete")


def _chain(folder: Path, headers: list[SegmentHeader], files: Files) -> list[Segment]:
    """Link the segments; the successor of each names its end. The newest has no end yet: 0."""
    segments = []
    for i, header in enumerate(headers):
        segment = Segment(header.number, header.nonce, header.seed(), header.previous_end, 0)
        segments.append(segment)
        if i == 0:
            continue
        previous, path = segments[i - 1], segment_path(folder, header.number - 1)
        if header.previous_end >> 32 != previous.number:
            raise corrupt(
                segment_path(folder, header.number), 0, "it does not follow the segment before it"
            )
        previous.end = header.previous_end & OFFSET_MASK
        length = _length(path, files)
        if length < previous.end:
            raise corrupt(path, length, f"it ends here, but was synced up to offset {previous.end}")
    return segments


def _read_settled(path: Path, files: Files) -> bytes:
    """Read the newest segment from disk. A killed process may have left it unsynced. A failed sync
    may have left pages that exist only in the cache: without `forget` they would be replayed, and
    lost at a power failure."""
    fd = files.open(path)
    try:
        files.sync(fd)
        files.forget(fd)
        return files.read(fd, files.size(fd), 0)
    finally:
        files.close(fd)


def _find_end(path: Path, data: bytes, recovered: Recovered) -> None:
    """Find the end of the newest segment and a torn tail after it. The writer opens it next and
    cuts there."""
    segment = recovered.segments[-1]
    reason = _walk(segment, data, recovered)
    if recovered.marked >> 32 > segment.number:
        following = segment_path(path.parent, segment.number + 1)
        raise CorruptData(
            f"journal segment {following} is missing or empty, but the previous segment records "
            f"that it was written. {_ADVICE}"
        )
    rest = len(data[segment.end :].rstrip(b"\0"))
    if rest:
        _refuse_if_synced(path, segment, data, reason)
        recovered.cuts.append(TornTail(path, segment.end, rest, reason))


def _walk(segment: Segment, data: bytes, recovered: Recovered) -> str:
    """Set the segment's end, the highest mark and the end of the entries. Return the reason why the
    walk ended."""
    base = segment.number << 32
    recovered.marked = segment.previous_end
    recovered.entries_end = segment.previous_end
    offset = SEGMENT_HEADER_BYTES
    while isinstance(frame := parse_frame(data, offset, segment.seed, len(data)), Frame):
        if frame.kind == FrameKind.MARK:
            recovered.marked = max(recovered.marked, frame.index)
        else:
            recovered.entries_end = base | frame.end
        offset = frame.end
    segment.end = offset
    return frame


def _refuse_if_synced(path: Path, segment: Segment, data: bytes, reason: str) -> None:
    here = segment.number << 32 | segment.end
    synced = max(
        find_marks(data, segment.end, seed=segment.seed, segment=segment.number), default=0
    )
    if synced > here:
        raise corrupt(
            path,
            segment.end,
            f"{reason}, though everything up to offset {synced & OFFSET_MASK} is known to be "
            "synced",
        )


def _length(path: Path, files: Files) -> int:
    fd = files.open(path)
    try:
        return files.size(fd)
    finally:
        files.close(fd)
