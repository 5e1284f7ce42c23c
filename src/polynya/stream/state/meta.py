"""The state that only the meta group fills: every group has one, so no rule asks which it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.commands import Retention
from polynya.stream.placement import ClusterMap
from polynya.stream.rules.topics import Topic, TopicChanges

if TYPE_CHECKING:
    from polynya.stream.rules.tables import Table


class MetaState:
    """The cluster-wide state of the meta group; empty in every other group."""

    def __init__(self) -> None:
        self.settings: dict[str, bytes] = {}  # see rules/meta.py
        self.tables: dict[int, Table] = {}  # by uid
        self.topics: dict[str, Topic] = {}  # Kafka topics, by name
        self.topic_changes = TopicChanges()
        self.buckets: dict[str, Retention] = {}  # retention policies of buckets
        self.map: ClusterMap | None = None  # of a cluster only
