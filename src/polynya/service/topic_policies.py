"""The retention of Kafka topics, by the streams that are their partitions.

It is looked up where retention is applied and is no state of a stream. So an idle partition is
evicted like any stream, and a changed config holds for all partitions at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.names import KAFKA_PREFIX, partition_name
from polynya.stream.features.topics.rules import retention_of_topic
from polynya.stream.features.topics.state import Topic, TopicState
from polynya.stream.parts import Retention

if TYPE_CHECKING:
    from polynya.service.node_service import NodeService


class TopicPolicies:
    """The topics with a retention, as one core knows them."""

    def __init__(self) -> None:
        self._revision = -1
        self._folders: dict[str, Retention] = {}  # by the folder of a topic's partitions
        self._adopted: dict[str, Retention] = {}  # by the name of a stream
        self._streams: dict[str, list[str]] = {}  # topic -> its adopted streams above

    def __bool__(self) -> bool:
        """Report whether any topic has a retention."""
        return bool(self._folders)

    async def refresh(self, service: NodeService) -> None:
        """Read what changed from this node's replica of the meta group."""
        news = await service.meta_group.topics(self._revision, local=True)
        if news.revision < self._revision:
            return
        if news.whole:
            self._folders, self._adopted, self._streams = {}, {}, {}
        for name in news.gone:
            self._set(name, [], None)
        for topic in news.topics:
            self._set(topic.name, topic.streams, _policy_of(topic))
        self._revision = news.revision

    def _set(self, name: str, streams: list[str], policy: Retention | None) -> None:
        self._folders.pop(_folder_of(name), None)
        for stream in self._streams.pop(name, ()):
            self._adopted.pop(stream, None)
        if policy is not None:
            self._folders[_folder_of(name)] = policy
            self._adopted.update(dict.fromkeys(streams, policy))
            self._streams[name] = streams

    def of(self, name: str) -> Retention | None:
        """Return the retention of a partition by the name of its stream, or None."""
        if name.startswith(KAFKA_PREFIX):
            return self._folders.get(name[: name.rfind("/") + 1])
        return self._adopted.get(name)


def _folder_of(topic: str) -> str:
    return partition_name(topic, 0).removesuffix("0")


def _policy_of(topic: Topic) -> Retention | None:
    return retention_of_topic(topic) if topic.state == TopicState.READY else None
