"""The state that only the meta group fills: every group has one, so no rule asks which it is."""

from __future__ import annotations

from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.tables.state import Table
from polynya.stream.features.topics.state import Topic, TopicChanges
from polynya.stream.parts import Retention


class MetaState:
    """The cluster-wide state of the meta group; empty in every other group."""

    def __init__(self) -> None:
        self.settings: dict[str, bytes] = {}  # see features/settings
        self.tables: dict[int, Table] = {}  # by uid
        self.topics: dict[str, Topic] = {}  # Kafka topics, by name
        self.topic_changes = TopicChanges()
        self.buckets: dict[str, Retention] = {}  # retention policies of buckets
        self.map: ClusterMap | None = None  # of a cluster only
