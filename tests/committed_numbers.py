"""Numbers that transactions wrote to a topic, as a committed reader sees them."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition


def committed(bootstrap: str, topic: str, partitions: int, seconds: float) -> list[list[int]]:
    """Return the committed values of each partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, part, 0) for part in range(partitions)])
    found: list[list[int]] = [[] for _ in range(partitions)]
    ended = set[int]()
    while len(ended) < partitions:
        message = consumer.poll(seconds)
        assert message is not None, "nothing came"
        if message.error():
            ended.add(message.partition())
        else:
            found[message.partition()].append(int(message.value()))
    consumer.close()
    return found
