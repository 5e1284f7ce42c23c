"""The streams of a group: by name, by uid, and those with hot batches, retention or segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from polynya.base.names import COMPANION, is_internal
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import HotBatch, Stream

_UID = attrgetter("uid")


class StreamDirectory:
    """The streams of a group. A stream is in `streams` or in `evicted`.

    `streams` and `by_uid` hold the same streams in the same order: that of their creation, until an
    evicted one returns (`disordered`). `hot` holds the streams with hot batches, and `hot_bytes` is
    the sum of their payloads. `retaining` holds the streams with their own retention policy,
    `leased` those with segments, `compacted` those that want key compaction themselves, `marked`
    those with snapshots, `undecided` those with open transactions; `companions` have the bodies of
    snapshots. `attribute_bytes` is the sum of
    their attributes."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.by_uid: dict[int, Stream] = {}
        # name -> packed `EvictedView`; the full state is in the object store
        self.evicted: dict[str, bytes] = {}
        self.disordered = False
        self.hot: dict[int, Stream] = {}
        self.hot_bytes = 0
        self.retaining: dict[int, Stream] = {}
        self.leased: dict[int, Stream] = {}
        self.undecided: dict[int, Stream] = {}
        self.compacted: dict[int, Stream] = {}
        self.marked: dict[int, Stream] = {}
        self.companions: dict[int, Stream] = {}
        self.internal: set[str] = set()  # names of streams of the product itself, evicted or not
        self.attribute_bytes = 0
        self._room = 0  # spare dict slots that `streams` may have allocated beyond its entries

    def lookup(self, name: str) -> Stream | None:
        """Return the stream of a canonical name, including soft-deleted and excluding evicted
        streams."""
        return self.streams.get(name)

    def absent(self, name: str) -> Reply:
        """Return the refusal for a command whose stream is not in `streams`."""
        return Reply(Code.EVICTED if name in self.evicted else Code.NOT_FOUND)

    @property
    def count(self) -> int:
        """The number of streams, including evicted ones."""
        return len(self.streams) + len(self.evicted)

    @property
    def public_count(self) -> int:
        """The number of streams that clients may know of."""
        return self.count - len(self.internal)

    def in_order(self) -> Iterable[Stream]:
        """Return the streams that are not evicted, in creation order."""
        return sorted(self.streams.values(), key=_UID) if self.disordered else self.streams.values()

    def flush_candidates(self) -> Iterator[tuple[Stream, list[HotBatch]]]:
        """Yield each stream with hot batches, and those batches in order."""
        for stream in self.hot.values():
            assert stream.hot
            yield stream, stream.hot

    def needed_positions(self) -> int | None:
        """Return the lowest journal position that a hot batch still needs, or None if everything is
        cold."""
        return min(
            (batch.position for stream in self.hot.values() for batch in stream.hot or ()),
            default=None,
        )

    def add(self, stream: Stream) -> None:
        """Add a stream that is new here."""
        self.streams[stream.name] = stream
        self.by_uid[stream.uid] = stream
        if is_internal(stream.name):
            self.internal.add(stream.name)
            if stream.name.startswith(COMPANION):
                self.companions[stream.uid] = stream

    def remove(self, stream: Stream) -> None:
        """Remove a stream without hot batches."""
        del self.streams[stream.name], self.by_uid[stream.uid]
        self.companions.pop(stream.uid, None)
        self.marked.pop(stream.uid, None)
        if stream.name not in self.evicted:
            self.internal.discard(stream.name)
        self.undecided.pop(stream.uid, None)

    def note_compacted(self, stream: Stream) -> None:
        """Note whether a stream wants key compaction now."""
        progress = None if stream.extras is None else stream.extras.compaction
        if progress is not None and progress.is_wanted:
            self.compacted[stream.uid] = stream
        else:
            self.compacted.pop(stream.uid, None)

    def compact_dicts(self, gone: int) -> None:
        """Rebuild the stream dicts after `gone` removals if they are mostly empty: a dict never
        shrinks in place."""
        self._room = max(self._room, len(self.streams) + gone)
        if self._room > 2 * len(self.streams) + 1024:
            self.streams, self.by_uid = dict(self.streams), dict(self.by_uid)
            self._room = len(self.streams)
