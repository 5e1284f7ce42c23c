"""What the handles of both shells show of what they hold: a reader its position, a producer its progress, a worker its name."""

from __future__ import annotations

from collections import deque

from polynya.client.producing import ProducerCore
from polynya.client.reading import ReadPosition
from polynya.client.values import Page, Record
from polynya.client.workers import Worker


class Position:
    """Where the user of a reader is: after what was given last. `offset` is where another reader would go on.

    A page without records moves the offset too, as soon as no record waits to be handed out. A `live` reader does not show such pages."""

    def __init__(self, place: ReadPosition, *, live: bool) -> None:
        self._place = place
        self._live = live
        self._waiting: deque[Record] = deque()
        self._end = self.offset = place.offset

    @property
    def stream(self) -> str:
        return self._place.name

    @property
    def content_type(self) -> str:
        """Of the stream; "" before the first answer."""
        return self._place.content_type

    @property
    def up_to_date(self) -> bool:
        """Everything was given that was there when the server was last asked."""
        return self._place.up_to_date and not self._waiting

    @property
    def closed(self) -> bool:
        """Everything was given, and nothing will follow."""
        return self._place.closed and not self._waiting

    def _take(self, page: Page) -> None:
        self._waiting.extend(page.records)
        self._end = page.offset
        if not self._waiting:
            self.offset = page.offset

    def _passed(self, page: Page) -> bool:
        """Note that the page is handed out whole. Returns whether the user is shown it."""
        self._end = page.offset
        if not self._waiting:
            self.offset = page.offset
        return bool(page.size or page.closed or not self._live)

    def _record(self) -> Record | None:
        """The next record of the pages that came, if there is one left."""
        if not self._waiting:
            return None
        record = self._waiting.popleft()
        if not self._waiting:
            self.offset = self._end
        elif record.offset:
            self.offset = record.offset
        return record


class ProducerProgress:
    """How far a producer is."""

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
        """Records that are durable."""
        return self._core.applied

    @property
    def buffered_bytes(self) -> int:
        """Of records without a receipt."""
        return self._core.buffered_bytes

    @property
    def repeats(self) -> int:
        """Requests that were sent again."""
        return self._core.repeats

    @property
    def offset(self) -> str:
        """After the last record that is known to be durable; "" before the first."""
        return self._core.offset


class Membership:
    """A worker of a group."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def name(self) -> str:
        """The worker's, as others see it."""
        return self._worker.name

    @property
    def leases_lost(self) -> int:
        """Leases that ran out while their records were being handled."""
        return self._worker.turns_lost
