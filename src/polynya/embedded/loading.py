"""Loading the catalog of a log: the newest state, then the frames after it, then older
directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polynya.base.errors import ConfigError, CorruptData
from polynya.embedded.catalog import Catalog
from polynya.embedded.frames import Kind, Walk, parse_state
from polynya.embedded.segments import SegmentReader, first_frame
from polynya.wal.frames import SEGMENT_HEADER_BYTES
from polynya.wal.recovery import corrupt, segment_path


class Loaded:
    """A catalog and how far it goes: `end` is the offset after the last frame of `segment`.

    `fresh`: the segment has no frame but marks.
    """

    def __init__(self, catalog: Catalog, walk: Walk, *, fresh: bool) -> None:
        self.catalog = catalog
        self.segment = catalog.segment
        self.end = walk.end
        self.last = walk.last
        self.fresh = fresh


def load(folder: Path, reader: SegmentReader) -> Loaded:
    """Load the catalog of the segments that `reader` knows, of which there is at least one.

    Each must be readable up to its end. If the end of the newest is not known (0), it is where
    its frames end. Raises `CorruptData`, `ConfigError`, `OSError`.
    """
    numbers = sorted(reader.segments)
    base = _base(folder, reader, numbers)
    catalog = Catalog()
    older = [number for number in numbers if number < base]
    replayed = [number for number in numbers if number >= base]
    for number in replayed:
        if number != base:
            reader.seal(catalog.segment, catalog.open_segment(number))
        else:
            catalog.open_segment(number)
        about = reader.segments[number]
        walk = Walk(reader.read_whole(number), about.seed, begin=SEGMENT_HEADER_BYTES)
        count = _replay(catalog, walk, number == base, lambda: _add_older(catalog, reader, older))
        if walk.end < about.end:
            raise corrupt(segment_path(folder, number), walk.end, walk.stopped)
    _verify(folder, catalog)
    return Loaded(catalog, walk, fresh=not count)


def _base(folder: Path, reader: SegmentReader, numbers: list[int]) -> int:
    """Return the segment to start from: the newest with a state, or the only one, which is
    empty."""
    for number in reversed(numbers):
        frame = first_frame(reader, number)
        if frame is not None and frame.kind != Kind.STATE:
            raise ConfigError(
                f"{segment_path(folder, number)} begins with a frame of kind {frame.kind}, not "
                "with the "
                "state of an embedded log: the directory holds another kind of journal"
            )
        if frame is not None or len(numbers) == 1:
            return number
    raise CorruptData(f"no segment in {folder} begins with the state of the log")


def _replay(catalog: Catalog, walk: Walk, is_base: bool, add_older: Callable[[], None]) -> int:
    count = 0
    for offset, frame in walk:
        if is_base and not count:
            catalog.load(parse_state(frame.payload))
            add_older()
        else:
            catalog.apply(offset, frame)
        count += 1
    return count


def _add_older(catalog: Catalog, reader: SegmentReader, older: list[int]) -> None:
    for number in older:
        for entry in reader.directory(number):
            if topic := catalog.numbered.get(entry.topic):
                topic.positions.add(number, entry.first)
    for topic in catalog.topics.values():
        topic.positions = topic.positions.without(topic.first)


def _verify(folder: Path, catalog: Catalog) -> None:
    """Raise `CorruptData` if a topic's oldest records are in no segment."""
    for topic in catalog.topics.values():
        if topic.first < topic.next and not topic.positions.segment_of(topic.first):
            raise CorruptData(
                f"record {topic.first} of topic {topic.name!r} is in no segment of {folder}: older "
                "segments are missing. Put them back from a backup"
            )
