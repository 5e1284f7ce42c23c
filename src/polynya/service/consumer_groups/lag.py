"""The lag of consumer groups for metrics: measured now and then by the core that leads each."""

from __future__ import annotations

import logging
from itertools import islice

from polynya.base.errors import PolynyaError
from polynya.jobs import Failures, repeat
from polynya.local.api import StreamInfo
from polynya.service.consumer_groups.coordinator import ConsumerGroupCoordinator
from polynya.service.node_service import NodeService
from polynya.stream.features.consumer_groups.state import ConsumerGroup
from polynya.stream.features.topics.state import Topic

LAG_SECONDS = 15.0
GROUPS_MAX = 1000  # that a core measures: each group and topic is a series
PARTITIONS_MAX = 10_000  # of one round: each is a lookup

log = logging.getLogger("polynya.core")


class GroupLags:
    """The lags of the groups that this core coordinates, by group and topic."""

    def __init__(self, service: NodeService, groups: ConsumerGroupCoordinator) -> None:
        self.found: dict[tuple[str, str], int] = {}
        self._service = service
        self._groups = groups

    async def run(self) -> None:
        """Measure until cancelled."""
        failures = Failures(
            log, "consumer group lags: the last values stay", PolynyaError, level=logging.INFO
        )
        await repeat(self.measure, LAG_SECONDS, failures, at_once=False)

    async def measure(self) -> None:
        """Read the ends that this node knows, of all partitions with a committed offset."""
        stored = list(islice((each for each in self._groups.stored() if each.offsets), GROUPS_MAX))
        news = await self._service.meta_group.topics(-1, local=True) if stored else None
        topics = {} if news is None else {topic.id: topic for topic in news.topics}
        left, found = PARTITIONS_MAX, dict[tuple[str, str], int]()
        for group in stored:
            left -= len(group.offsets)
            if left < 0:
                break
            for topic, lag in (await self._of_group(group, topics)).items():
                found[group.id, topic] = lag
        self.found = found

    async def _of_group(self, group: ConsumerGroup, topics: dict[bytes, Topic]) -> dict[str, int]:
        lags: dict[str, int] = {}
        for entry, _ in list(group.entries()):
            topic = topics.get(entry.topic)
            if topic is None:
                continue
            info = await self._service.info(topic.stream(entry.partition), local=True)
            if isinstance(info, StreamInfo):
                lag = max(0, info.record - max(entry.offset, info.first_record))
                lags[topic.name] = lags.get(topic.name, 0) + lag
        return lags
