"""The numbers of a group that only grow."""

from __future__ import annotations


class GroupCounters:
    """The log time, the feature level, and the counters of a group."""

    def __init__(self, group: int) -> None:
        self.log_ms = 0  # the largest applied log time; refused commands count too
        self.level = 1  # feature level of the rules (base/levels.py)
        # no `SetLevel` comes, so newer rules raise the level themselves; no part of the state
        self.standalone = False
        self.uids = 0
        self.producer_ids = 0  # Kafka producer ids that this group has allotted
        # what each restore has added to the Kafka leader epochs; those before the first added 0
        self.epoch_bases: list[int] = []
        self._group = group

    @property
    def epoch_base(self) -> int:
        """The difference between a Kafka leader epoch and the group's term."""
        return self.epoch_bases[-1] if self.epoch_bases else 0

    def raise_level(self, level: int) -> None:
        """Raise the level; it never goes down."""
        if level > self.level:
            self.level = level

    def next_uid(self) -> int:
        """Return a uid that no stream ever had: the birth group and a counter."""
        self.uids += 1
        return self._group << 48 | self.uids

    def next_revision(self) -> int:
        """Return a revision that no attributes of the group ever had: a counter that no uid gets."""
        self.uids += 1
        return self.uids

    def skip_producer_id(self, counter: int) -> None:
        """Keep the producer id of this counter from being allotted, and those before it."""
        self.producer_ids = max(self.producer_ids, counter + 1)

    def next_producer_ids(self, count: int) -> int:
        """Allot producer ids and return the first: the group's number above a counter."""
        first = self._group << 47 | self.producer_ids
        self.producer_ids += count
        return first
