"""The machine of one fetch session: its epoch, its partitions in the order in which they are read,
and the ends that the client knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

INITIAL_EPOCH, FINAL_EPOCH = 0, -1  # a full fetch that creates a session, or has none
_EPOCH_MAX = 2**31 - 1
_UNKNOWN = -1  # an end that the client is to be told

Key = tuple[str | bytes, int]  # the topic, by its name or its id, and the partition


class SessionPartition(msgspec.Struct, gc=False):
    """A partition as the client asks for it, and its ends as the last response gave them."""

    asked: FetchPartition
    high: int = _UNKNOWN
    stable: int = _UNKNOWN
    first: int = _UNKNOWN

    def take(self, answer: PartitionData) -> bool:
        """Note the ends in an answer; return True if the client is to be told."""
        ends = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        has_news = ends != (self.high, self.stable, self.first) or bool(answer.records)
        self.high, self.stable, self.first = ends
        if answer.error_code or answer.preferred_read_replica >= 0:
            self.high = _UNKNOWN  # the partition is told again when the error is over
            return True
        return has_news


class FetchSession:
    """One session. `by_id`: its topics are named by ids."""

    __slots__ = ("by_id", "created", "epoch", "id", "is_open", "partitions", "used")

    def __init__(self, id_: int, *, by_id: bool, now: float) -> None:
        self.id = id_
        self.by_id = by_id
        self.epoch = 1  # of the next request
        self.partitions: dict[Key, SessionPartition] = {}  # read in this order
        self.is_open = True
        self.created = self.used = now  # seconds

    def refusal(self, id_: int, epoch: int, *, by_id: bool) -> Error:
        """Return the error of a request that is not the next one of this session."""
        if not self.is_open or id_ != self.id:
            return Error.FETCH_SESSION_ID_NOT_FOUND
        if epoch != self.epoch:
            return Error.INVALID_FETCH_SESSION_EPOCH
        return Error.NONE if by_id == self.by_id else Error.FETCH_SESSION_TOPIC_ID_ERROR

    def advance(self) -> None:
        """Expect the next epoch."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add or change partitions, then drop the forgotten ones. A changed one keeps its place."""
        partitions, by_id = self.partitions, self.by_id
        for topic in topics:
            name = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                known = partitions.get((name, asked.partition))
                if known is None:
                    partitions[name, asked.partition] = SessionPartition(asked)
                else:
                    known.asked = asked
        for gone in forgotten:
            name = gone.topic_id if by_id else gone.topic
            for number in gone.partitions:
                partitions.pop((name, number), None)

    def topics(self) -> list[FetchTopic]:
        """Return all partitions as a request: neighbours of one topic together."""
        found: list[FetchTopic] = []
        last: str | bytes | None = None
        for (name, _), each in self.partitions.items():
            if name != last:
                found.append(FetchTopic(partitions=[]))
                if isinstance(name, str):
                    found[-1].topic = name
                else:
                    found[-1].topic_id = name
                last = name
            found[-1].partitions.append(each.asked)
        return found

    def take(self, responses: Sequence[FetchableTopicResponse]) -> list[FetchableTopicResponse]:
        """Note the answers for partitions; return those that the client is to be told. A partition
        with records goes behind all others, so that each has its turn in a full response."""
        partitions, reported = self.partitions, []
        for topic in responses:
            name = topic.topic_id if self.by_id else topic.topic
            news = []
            for answer in topic.partitions:
                key = name, answer.partition_index
                known = partitions.get(key)
                if known is None or known.take(answer):  # None: the session has been closed
                    news.append(answer)
                if answer.records and known is not None:
                    del partitions[key]
                    partitions[key] = known
            if news:
                reported.append(FetchableTopicResponse(topic.topic, topic.topic_id, news))
        return reported


def count_of(topics: Iterable[FetchTopic]) -> int:
    """Return the number of partitions that a request names."""
    return len(list(chain.from_iterable(each.partitions for each in topics)))
