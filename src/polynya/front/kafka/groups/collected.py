"""Offsets of a commit request that the log will keep."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from polynya.base.limits import OFFSET_METADATA_BYTES_MAX
from polynya.front.kafka.errors import Error
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.topics.state import Topic


class _Asked(Protocol):
    """A partition of OffsetCommit or TxnOffsetCommit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class _Answer(Protocol):
    error_code: int


A = TypeVar("A", bound=_Answer)


class CollectedOffsets(Generic[A]):
    """The offsets of known partitions as `entries`, and in the same order the `answers` that wait
    for what the log says of them."""

    def __init__(self) -> None:
        self.entries: list[OffsetEntry] = []
        self.answers: list[A] = []

    def collect(self, topic: Topic | None, asked: _Asked, answer: A) -> None:
        """Keep the offset of a partition, or set its answer's error. Without a topic, the answer
        has its error already."""
        if topic is None:
            return
        metadata = asked.committed_metadata or ""
        if not 0 <= asked.partition_index < topic.partitions:
            answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
        elif len(metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            answer.error_code = Error.OFFSET_METADATA_TOO_LARGE
        else:
            self.answers.append(answer)
            partition = (topic.id, asked.partition_index)
            offset = (asked.committed_offset, asked.committed_leader_epoch)
            self.entries.append(OffsetEntry(*partition, *offset, metadata))
