"""The topics that a coordinator assigns: a view that follows this node's replica of the list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from polynya.base.errors import Unavailable
from polynya.routing.answers import MetaGroup
from polynya.stream.features.consumer_groups.topic_view import TopicView

_FRESH_SECONDS = 0.5  # this node's list is read again after it
_ASK_SECONDS = 1.0  # between two questions to the leader for topics that this node does not know


class TopicSource:
    """The view of one core. The first list is the leader's: an older one would take partitions from
    their members after a failover."""

    def __init__(self, meta_group: MetaGroup) -> None:
        self.view = TopicView()
        self._meta_group = meta_group
        self._read_at = self._asked_at = float("-inf")
        self._reading = asyncio.Lock()

    async def refresh(self, names: Iterable[str] = ()) -> None:
        """Bring the view up to date. `names`: topics that should be known, if they exist. Raises
        Unavailable while no list was ever read."""
        now = asyncio.get_running_loop().time()
        view = self.view
        is_missing = any(name not in view.by_name for name in names)
        asks = view.revision < 0 or (is_missing and now - self._asked_at >= _ASK_SECONDS)
        if not asks and now - self._read_at < _FRESH_SECONDS:
            return
        async with self._reading:
            if max(self._asked_at, -1.0) > now or (not asks and self._read_at > now):
                return  # another call has read meanwhile
            try:
                news = await self._meta_group.topics(view.revision, local=not asks)
            except Unavailable:
                if view.revision < 0:
                    raise
                return
            self._read_at = asyncio.get_running_loop().time()
            if asks:
                self._asked_at = self._read_at
            view.take(news)
