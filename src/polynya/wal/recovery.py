"""What is found at the start: which segments there are, where the newest one ends, and whether that is a torn tail or corruption."""

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
    "Nothing was cut or changed. Keep a copy of the folder, check the disk, and put the file back from a backup or from another copy; "
    "everything before this place is readable"
)


class Segment(msgspec.Struct, gc=False):
    """One segment. `end` is the offset behind its last frame, `previous_end` a place, `farewell` the mark behind the segment before it."""

    number: int
    nonce: int
    seed: int
    previous_end: int
    end: int
    farewell: bytes = b""


class TornTail(msgspec.Struct, frozen=True):
    """A torn tail that is cut: it was never acknowledged. `length` counts the bytes up to the last one that was not zero."""

    path: Path
    offset: int
    length: int
    reason: str


class Recovered(msgspec.Struct):
    """`marked` is the highest place named by a mark, `entries_end` the place behind the newest entry; `next_number` is free, `begun` the
    journal's own number."""

    segments: list[Segment]
    next_number: int
    marked: int = 0
    entries_end: int = 0
    cuts: list[TornTail] = []
    begun: int = 0


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment lies."""
    return folder / f"{number:010d}{SUFFIX}"


def corrupt(path: Path, offset: int, why: str) -> CorruptData:
    """The error of damage where none may be; to be raised."""
    return CorruptData(f"journal segment {path} is damaged at offset {offset}: {why}. {_ADVICE}")


def recover(folder: Path, *, journal_id: int, files: Files, begun: bool = False) -> Recovered:
    """Checks all headers, walks the newest segment and finds its torn tail. `begun`: there was a segment before.

    Raises `CorruptData` for damage that is no torn tail, `ConfigError` for a journal that is not this one, `OSError`."""
    files.sync_folder(folder)  # the newest segment's name may not be durable yet, nor the removal of released ones
    numbers = _numbers(folder, files)
    if not numbers:
        if begun:
            raise CorruptData(f"all segments of the journal in {folder} are missing. {_ADVICE}")
        return Recovered([], 1)
    headers = [_read_header(segment_path(folder, number), number, journal_id, files) for number in numbers[:-1]]
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
    """Whether a journal was begun in the folder, which may not be there."""
    try:
        return bool(_numbers(folder, files))
    except FileNotFoundError:
        return False


def _numbers(folder: Path, files: Files) -> list[int]:
    names = [name.removesuffix(SUFFIX) for name in files.names(folder) if name.endswith(SUFFIX)]
    numbers = sorted(int(name) for name in names if len(name) == 10 and name.isdecimal())
    for number, following in pairwise(numbers):
        if following != number + 1:
            raise CorruptData(f"journal segment {segment_path(folder, number + 1)} is missing, but newer ones are there. {_ADVICE}")
    return numbers


def _read_header(path: Path, number: int, journal_id: int, files: Files) -> SegmentHeader:
    """Of a segment that has a follower. It was synced long ago."""
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
        raise ConfigError(f"{path} has journal format {header}; this release reads format {FORMAT_VERSION}: use the release that wrote it")
    if header is not None and header.journal_id != journal_id:
        raise ConfigError(
            f"{path} belongs to journal {header.journal_id:#x}, not to {journal_id:#x}: the data folder is another node's or core's"
        )
    if header is not None and header.number != number:
        raise corrupt(path, 0, f"it is segment {header.number} under another name")
    return header


def _torn(path: Path, data: bytes) -> TornTail:
    """The newest segment has no readable header: it is the trace of a crash while it was made, if nothing lies behind the header. It goes."""
    if data[SEGMENT_HEADER_BYTES:].strip(b"\0"):
        raise corrupt(path, 0, "its header is unreadable, though it was synced before anything was written behind it")
    return TornTail(path, 0, len(data.rstrip(b"\0")), "the header of a new segment is incomplete")


def _chain(folder: Path, headers: list[SegmentHeader], files: Files) -> list[Segment]:
    """Segments with their ends, as their followers state them. The newest has no end yet: 0."""
    segments = []
    for i, header in enumerate(headers):
        segment = Segment(header.number, header.nonce, header.seed(), header.previous_end, 0)
        segments.append(segment)
        if i == 0:
            continue
        previous, path = segments[i - 1], segment_path(folder, header.number - 1)
        if header.previous_end >> 32 != previous.number:
            raise corrupt(segment_path(folder, header.number), 0, "it does not follow the segment before it")
        previous.end = header.previous_end & OFFSET_MASK
        length = _length(path, files)
        if length < previous.end:
            raise corrupt(path, length, f"it ends here, but was synced up to offset {previous.end}")
    return segments


def _read_settled(path: Path, files: Files) -> bytes:
    """What the disk has of the newest segment. A process that was killed may have left it unsynced, and one whose sync failed may have
    left pages that only the cache has: without `forget` they would be replayed, and be gone after a power cut."""
    fd = files.open(path)
    try:
        files.sync(fd)
        files.forget(fd)
        return files.read(fd, files.size(fd), 0)
    finally:
        files.close(fd)


def _find_end(path: Path, data: bytes, recovered: Recovered) -> None:
    """Where the newest segment ends, and whether a torn rest follows: the writer, which opens it next, cuts there."""
    segment = recovered.segments[-1]
    reason = _walk(segment, data, recovered)
    if recovered.marked >> 32 > segment.number:
        following = segment_path(path.parent, segment.number + 1)
        raise CorruptData(f"journal segment {following} is missing or empty, but the one before it says that it was written. {_ADVICE}")
    rest = len(data[segment.end :].rstrip(b"\0"))
    if rest:
        _refuse_if_synced(path, segment, data, reason)
        recovered.cuts.append(TornTail(path, segment.end, rest, reason))


def _walk(segment: Segment, data: bytes, recovered: Recovered) -> str:
    """Sets the segment's end, the highest mark and the end of the entries; returns why the walk ended."""
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
    synced = max(find_marks(data, segment.end, seed=segment.seed, segment=segment.number), default=0)
    if synced > here:
        raise corrupt(path, segment.end, f"{reason}, though everything up to offset {synced & OFFSET_MASK} is known to be synced")


def _length(path: Path, files: Files) -> int:
    fd = files.open(path)
    try:
        return files.size(fd)
    finally:
        files.close(fd)
