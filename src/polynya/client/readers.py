"""What both readers share: pages to records, and where a user would go on."""

from __future__ import annotations

from collections import deque

from polynya.client.reading import Place
from polynya.client.values import Page, Record


class Position:
    """Where the user of a reader is: after what was given last. `offset` is where another reader would go on."""

    def __init__(self, place: Place) -> None:
        self._place = place
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

    def _pass(self, page: Page) -> None:
        self.offset = self._end = page.offset

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
