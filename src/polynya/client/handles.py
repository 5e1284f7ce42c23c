"""Properties that the handles of both clients share: a reader's position, a producer's progress, a
worker's name."""

from __future__ import annotations

from collections import deque

from polynya.client.live.many import ManyPosition, StreamEvent
from polynya.client.producing import ProducerCore
from polynya.client.reading import ReadPosition
from polynya.client.values import Page, Record
from polynya.client.workers import Worker


class Position:
    """The position of a reader. `offset` is after the last record handed out; another reader can
    resume there.

    A page without records also advances the offset once no record waits to be handed out. A `live`
    reader does not show such pages."""

    def __init__(self, position: ReadPosition, *, live: bool) -> None:
        self._position = position
        self._live = live
        self._waiting: deque[Record] = deque()
        self._end = self.offset = position.offset

    @property
    def stream(self) -> str:
        return self._position.name

    @property
    def content_type(self) -> str:
        """The stream's content type; "" before the first response."""
        return self._position.content_type

    @property
    def up_to_date(self) -> bool:
        """True when the reader has handed out everything up to the tail of the last response."""
        return self._position.up_to_date and not self._waiting

    @property
    def closed(self) -> bool:
        """True when the reader has handed out everything and the stream is closed."""
        return self._position.closed and not self._waiting

    def _take(self, page: Page) -> None:
        self._waiting.extend(page.records)
        self._end = page.offset
        if not self._waiting:
            self.offset = page.offset

    def _passed(self, page: Page) -> bool:
        """Record that a whole page was handed out. Return True if the user should see it."""
        self._end = page.offset
        if not self._waiting:
            self.offset = page.offset
        return bool(page.size or page.closed or not self._live)

    def _record(self) -> Record | None:
        """Return the next buffered record, or None."""
        if not self._waiting:
            return None
        record = self._waiting.popleft()
        if not self._waiting:
            self.offset = self._end
        elif record.offset:
            self.offset = record.offset
        return record


class ReaderOffsets:
    """The positions of a reader of many streams. `offsets` has, for each, the offset after the last
    record handed out; another reader can resume there."""

    def __init__(self, position: ManyPosition) -> None:
        self._position = position
        self._waiting: deque[Record] = deque()
        self.offsets = dict(position.offsets)

    @property
    def up_to_date(self) -> bool:
        """True when the reader has handed out every stream up to its tail once."""
        return self._position.up_to_date and not self._waiting

    def _take(self, event: StreamEvent) -> None:
        """Take an event: its records are handed out next."""
        page = event.page
        self._waiting.extend(page.records)
        if event.deleted:
            self.offsets.pop(page.stream, None)
        elif page.offset and not page.size:
            self.offsets[page.stream] = page.offset

    def _passed(self, event: StreamEvent) -> None:
        """Record that a whole event was handed out."""
        if event.deleted:
            self.offsets.pop(event.stream, None)
        elif event.page.offset:
            self.offsets[event.stream] = event.page.offset

    def _record(self) -> Record | None:
        """Return the next buffered record, or None."""
        if not self._waiting:
            return None
        record = self._waiting.popleft()
        if record.offset:
            self.offsets[record.stream] = record.offset
        return record


class ProducerProgress:
    """The progress of a producer."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    @property
    def id(self) -> str:
        return self._core.names.producer_id

    @property
    def epoch(self) -> int:
        return self._core.epoch

    @property
    def applied(self) -> int:
        """The number of durable records."""
        return self._core.receipts.applied

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records without a receipt."""
        return self._core.batches.buffered_bytes

    @property
    def repeats(self) -> int:
        """The number of requests that were retried."""
        return self._core.repeats

    @property
    def offset(self) -> str:
        """The offset after the last record known to be durable; "" before the first."""
        return self._core.receipts.offset


class Membership:
    """The membership of a worker in a group."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def name(self) -> str:
        """The worker's name, as other workers see it."""
        return self._worker.name

    @property
    def lanes(self) -> list[int]:
        """The lanes that the worker keeps now; all of the group's unless `by="stream"`."""
        return self._worker.lanes

    @property
    def leases_lost(self) -> int:
        """The number of leases that expired while their records were handled."""
        return self._worker.turns_lost
