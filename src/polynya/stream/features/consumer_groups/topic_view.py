"""The topics as a coordinator knows them: names, ids, and numbers of partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import msgspec

from polynya.stream.features.topics.state import TopicNews, TopicState


class KnownTopic(msgspec.Struct, frozen=True, gc=False):
    """A ready topic."""

    id: bytes
    partitions: int
    serial: int  # of its last change, in this view


class TopicView:
    """The ready topics up to a revision of the meta group's list; -1: nothing is known yet."""

    def __init__(self) -> None:
        self.revision = -1
        self.serial = 0  # counts the changes
        self.by_name: dict[str, KnownTopic] = {}  # in the order of their last changes
        self.name_of: dict[bytes, str] = {}

    def take(self, news: TopicNews) -> None:
        """Take over what changed since `revision`. An older list is ignored."""
        if news.revision < self.revision:
            return
        changed = {topic.name for topic in news.topics}
        gone = [each for each in self.by_name if each not in changed] if news.whole else news.gone
        for name in gone:
            self._forget(name)
        for topic in news.topics:
            known = self.by_name.get(topic.name)
            is_ready = topic.state == TopicState.READY
            if known and is_ready and (known.id, known.partitions) == (topic.id, topic.partitions):
                continue
            self._forget(topic.name)
            if is_ready:
                self.serial += 1
                self.by_name[topic.name] = KnownTopic(topic.id, topic.partitions, self.serial)
                self.name_of[topic.id] = topic.name
        self.revision = news.revision

    def changed_since(self, serial: int) -> Iterator[tuple[str, int]]:
        """Yield the names that changed after a serial, the oldest first, each with its own."""
        newest_first = takewhile(
            lambda each: each[1].serial > serial, reversed(self.by_name.items())
        )
        return reversed([(name, topic.serial) for name, topic in newest_first])

    def _forget(self, name: str) -> None:
        known = self.by_name.pop(name, None)
        if known is not None:
            self.serial += 1
            self.name_of.pop(known.id, None)
