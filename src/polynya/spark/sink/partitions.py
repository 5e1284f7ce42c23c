"""The streams of a topic as targets of a write. HTTP writes to partitions that are adopted streams; the
others belong to Kafka's protocol."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from polynya.base.errors import ConfigError, PolynyaError
from polynya.base.names import partition_of
from polynya.spark.selection import topics
from polynya.spark.server import Server
from polynya.wire.kafka.partitioner import partition_of_key

COLUMN = "partition"  # the number of each row's partition


class Partitions(msgspec.Struct, frozen=True):
    """The streams of a topic in order of their numbers."""

    topic: str
    streams: list[str]

    def targets(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield the stream of each row: that of its partition, else that of its key as Kafka's
        clients choose it, else one after the other. Raises PolynyaError."""
        empty = [None] * len(batch)
        names = batch.schema.names
        numbers = batch.column(COLUMN).to_pylist() if COLUMN in names else empty
        keys = batch.column("key").to_pylist() if "key" in names else empty
        count = len(self.streams)
        for at, (given, key) in enumerate(zip(numbers, keys, strict=True)):
            by_key = at % count if key is None else partition_of_key(_bytes(key), count)
            number = by_key if given is None else given
            if not isinstance(number, int) or not 0 <= number < count:
                raise PolynyaError(
                    f"a row's partition is {number!r}; topic '{self.topic}' has the partitions 0 to "
                    f"{count - 1}"
                )
            yield self.streams[number]


def partitions_of(server: Server, name: str) -> Partitions:
    """Return the partitions of a topic. Raises ConfigError if HTTP does not write to one of them."""
    found = [topic for topic in server.run(topics) if topic.name == name]
    remedy = (
        f"make a topic of streams: polynya create {name}/0, and polynya topic adopt {name} --from "
        f"{name}/0"
    )
    if not found:
        raise ConfigError(f"there is no topic '{name}' to write to; {remedy}")
    streams = [*found[0].streams().values()]
    own = [stream for stream in streams if partition_of(stream)]
    if own:
        raise ConfigError(
            f"partition '{own[0]}' of topic '{name}' takes records by Kafka's protocol alone, in which "
            f"a repeated batch cannot be told from a new one; {remedy}, or write with Spark's Kafka sink"
        )
    return Partitions(name, streams)


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)
