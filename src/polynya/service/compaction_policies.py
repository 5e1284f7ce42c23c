"""The streams whose keys are compacted, as one core knows them: partitions of topics with
`cleanup.policy=compact`, and streams whose own retention says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.cold.compaction.planner import CompactionPolicy
from polynya.stream.features.topics.state import Topic, TopicState

if TYPE_CHECKING:
    from polynya.service.node_service import NodeService

PLAIN = CompactionPolicy()  # of a stream that is no topic's partition


class CompactionPolicies:
    """The policies of one core. Topics are read again when they have changed."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._revision = -1
        self._topics: dict[str, dict[str, CompactionPolicy]] = {}  # by topic, then by stream

    async def named(self) -> dict[str, CompactionPolicy]:
        """Return the policies by the names of the streams."""
        await self._refresh()
        found = dict.fromkeys(self._plain(), PLAIN)
        for policies in self._topics.values():
            found.update(policies)
        return found

    def _plain(self) -> list[str]:
        return [
            stream.name
            for machine in self._service.local.led.values()
            for stream in machine.directory.compacted.values()
        ]

    async def _refresh(self) -> None:
        """Read what changed from this node's replica of the meta group."""
        news = await self._service.meta_group.topics(self._revision, local=True)
        if news.revision < self._revision:
            return
        if news.whole:
            self._topics = {}
        for name in news.gone:
            self._topics.pop(name, None)
        for topic in news.topics:
            self._topics.pop(topic.name, None)
            policy = policy_of_topic(topic)
            if policy is not None:
                streams = map(topic.stream, range(topic.partitions))
                self._topics[topic.name] = dict.fromkeys(streams, policy)
        self._revision = news.revision


def policy_of_topic(topic: Topic) -> CompactionPolicy | None:
    """Return the policy that the configs of a topic ask for; None: its keys are not compacted."""
    configs = dict(topic.configs)
    if topic.state != TopicState.READY or "compact" not in configs.get("cleanup.policy", ""):
        return None
    known = CompactionPolicy()
    return CompactionPolicy(
        int(configs.get("min.compaction.lag.ms", known.min_lag_ms)),
        int(configs.get("max.compaction.lag.ms", known.max_lag_ms)),
        int(configs.get("delete.retention.ms", known.delete_retention_ms)),
        float(configs.get("min.cleanable.dirty.ratio", known.dirty_ratio)),
    )
