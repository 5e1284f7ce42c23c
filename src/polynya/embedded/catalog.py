"""The state of a log in memory: topics with their positions, and cursors. Frames change it."""

from __future__ import annotations

from polynya.base.errors import ConfigError, CorruptData
from polynya.embedded.frames import (
    STATE_VERSION,
    U64,
    CursorState,
    Kind,
    State,
    TopicState,
    batch_lengths,
)
from polynya.embedded.index import Positions, Run, SegmentIndex
from polynya.wal.frames import Frame


class Topic:
    """One topic. Its records are those from `first` up to `next`.

    `bytes_first` and `bytes_next` count the payload before these records, from record 0.
    `run` has the frames in the open segment. `staged` and `staged_bytes` run ahead of `next`
    and `bytes_next` while a write is built.
    """

    __slots__ = (
        "bytes_first",
        "bytes_next",
        "cursors",
        "first",
        "name",
        "next",
        "number",
        "positions",
        "run",
        "staged",
    )

    def __init__(self, state: TopicState) -> None:
        self.number = state.number
        self.name = state.name
        self.first = state.first
        self.next = self.staged = state.next
        self.bytes_first = state.bytes_first
        self.bytes_next = state.bytes_next
        self.cursors: dict[str, int] = {}
        self.positions = Positions()
        self.run: Run | None = None

    def state(self) -> TopicState:
        """Return the topic as in a state frame."""
        return TopicState(
            self.number, self.name, self.first, self.next, self.bytes_first, self.bytes_next
        )


class Catalog:
    """All topics of a log, and the index of its open segment.

    One thread at a time changes it; any thread may read. `next` of a topic is set last.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.numbered: dict[int, Topic] = {}
        self.next_topic = 1
        self.cursors = 0
        self.segment = 0
        self.index = SegmentIndex()

    def load(self, state: State) -> None:
        """Take over a state, without positions."""
        self.topics = {topic.name: Topic(topic) for topic in state.topics}
        self.numbered = {topic.number: topic for topic in self.topics.values()}
        self.next_topic = state.next_topic
        self.cursors = len(state.cursors)
        for cursor in state.cursors:
            self.numbered[cursor.topic].cursors[cursor.name] = cursor.position

    def state(self) -> State:
        """Return the state as in a state frame."""
        topics = list(self.topics.values())
        cursors = [
            CursorState(t.number, name, at) for t in topics for name, at in t.cursors.items()
        ]
        return State(STATE_VERSION, self.next_topic, [topic.state() for topic in topics], cursors)

    def open_segment(self, number: int) -> SegmentIndex:
        """Begin a segment; return the index of the one before it."""
        sealed, self.index = self.index, SegmentIndex()
        self.segment = number
        for run_topic in sealed.runs:
            if topic := self.numbered.get(run_topic):
                topic.run = None
        return sealed

    def apply(self, offset: int, frame: Frame) -> None:
        """Apply a frame of the open segment. Raises `CorruptData` if it does not fit."""
        number = frame.term
        if frame.kind == Kind.STATE:
            return
        if frame.kind == Kind.TOPIC:
            self.create(number, frame.payload.decode())
            return
        topic = self.numbered.get(number)
        if topic is None:
            self._refuse_kind(frame)
            raise CorruptData(
                f"a frame names topic number {number}, which does not exist at {offset}"
            )
        if frame.kind == Kind.RECORD:
            self.add(topic, offset, frame.index, 1, len(frame.payload))
        elif frame.kind == Kind.BATCH:
            lengths = batch_lengths(frame.payload)
            self.add(topic, offset, frame.index, len(lengths), sum(lengths))
        else:
            self.change(topic, frame.kind, frame.index, frame.payload)

    def change(self, topic: Topic, kind: int, index: int, payload: bytes) -> None:
        """Apply a frame that holds no records."""
        if kind == Kind.TRIM:
            topic.bytes_first = U64.unpack(payload)[0]
            topic.first = index
            topic.positions = topic.positions.without(index)
        elif kind == Kind.CURSOR:
            name = payload.decode()
            self.cursors += name not in topic.cursors
            topic.cursors[name] = index
        elif kind == Kind.DROP_CURSOR:
            self.cursors -= topic.cursors.pop(payload.decode(), None) is not None
        elif kind == Kind.DELETE:
            del self.topics[topic.name], self.numbered[topic.number]
            self.cursors -= len(topic.cursors)
            topic.first, topic.bytes_first = topic.next, topic.bytes_next
        else:
            self._refuse_kind(Frame(0, kind, 0, 0, b"", 0))

    def create(self, number: int, name: str) -> Topic:
        """Add a topic."""
        topic = Topic(TopicState(number, name, 0, 0, 0, 0))
        self.add_topic(topic)
        return topic

    def add_topic(self, topic: Topic) -> None:
        """Add a topic that a write has created."""
        self.topics[topic.name] = self.numbered[topic.number] = topic
        self.next_topic = topic.number + 1

    def add(self, topic: Topic, offset: int, number: int, count: int, size: int) -> None:
        """Add a frame with `count` records and `size` bytes of payload."""
        if number != topic.next:
            raise CorruptData(
                f"record {number} of topic {topic.name!r} follows record {topic.next - 1} in the "
                "log"
            )
        total = topic.bytes_next + size
        run = topic.run
        if run is None:
            run = Run(number, topic.bytes_next, self.segment)
            run.add(number, offset, total)
            self.index.runs[topic.number] = topic.run = run
            topic.positions.add(self.segment, number)
        else:
            run.add(number, offset, total)
        topic.bytes_next = total
        topic.next = topic.staged = number + count

    def oldest_segment(self) -> int:
        """Return the oldest segment that holds a record of any topic, or the open one."""
        segments = (
            t.positions.segment_of(t.first) for t in self.topics.values() if t.first < t.next
        )
        return min(segments, default=self.segment)

    def _refuse_kind(self, frame: Frame) -> None:
        if not Kind.RECORD <= frame.kind <= Kind.STATE:
            raise ConfigError(
                f"the log has a frame of kind {frame.kind}, which this release does not know: the "
                "directory is of a newer release, or not of an embedded log"
            )
