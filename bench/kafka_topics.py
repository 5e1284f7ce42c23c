"""Measure many topics: creation, what a core learns of them, and Metadata of all.

python -m bench.kafka_topics [--topics 10000] [--partitions 10] [--created 1000]

One core in this process on a real folder. The topics that Metadata lists are put into the meta
group without their streams. Creation is measured with streams, journal and fsync, in seconds of
the clock; all else is CPU time of this process, so that a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from polynya.engine.storage import open_storage
from polynya.front.kafka.auth.caller import EVERYBODY
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.metadata import metadata
from polynya.front.kafka.server import KafkaFront
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.commands import TopicChange, TopicPut, TopicReady
from polynya.wire.kafka.generated.metadata import MetadataRequest
from polynya.wire.kafka.messages import APIS

GROUPS = 16
METADATA = 3
AT_ONCE = 256
REPEATS = 5


class OneBroker:
    """A node alone."""

    cluster_id, own, zone = "bench", 0, ""

    def all(self) -> tuple[Broker, ...]:
        return (Broker(0, "127.0.0.1", 9092),)

    def leader_of(self, group: int) -> int:
        return 0

    def epoch_of(self, group: int) -> int:
        return 1

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [0], [0]

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        return () if zone else (0,)

    def owners(self, zone: str) -> tuple[int, ...]:
        return (0,)

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        return 0

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        return [0]

    async def follow(self) -> None:
        """Learn nothing: the leaders do not change."""


def _milliseconds(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values) * 1000, 2),
        "max": round(max(values) * 1000, 2),
    }


async def _fill(service: Any, topics: int, partitions: int) -> None:
    """Put topics without their streams into the meta group."""

    async def one(number: int) -> None:
        name, id_ = f"topic-{number:05}", number.to_bytes(16)
        await service.call(0, TopicPut(name, id_, partitions, [], 1))
        await service.call(0, TopicReady(name, id_, partitions))

    for begin in range(0, topics, AT_ONCE):
        await asyncio.gather(*map(one, range(begin, min(topics, begin + AT_ONCE))))


async def _ask_all(front: KafkaFront) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of Metadata of all topics."""
    header = SimpleNamespace(correlation=7, client_id="bench")
    call: Any = SimpleNamespace(
        context=front.context, caller=EVERYBODY, version=12, api=APIS[METADATA], header=header
    )
    began = time.process_time()
    pieces: Any = await metadata(call, MetadataRequest(topics=None))
    return time.process_time() - began, sum(map(len, pieces))


async def _metadata(front: KafkaFront, service: Any) -> dict[str, Any]:
    """Measure Metadata of all: first, again, and after one topic changed."""
    first, size = await _ask_all(front)
    again = [(await _ask_all(front))[0] for _ in range(REPEATS)]
    changed, learned = [], []
    for number in range(REPEATS):
        topic = front.context.topics.names[f"topic-{number:05}"]
        change = TopicChange(topic.name, topic.id, topic.revision, topic.partitions, [("a", "1")])
        await service.call(0, change)
        began = time.process_time()
        await front.context.topics.refresh()
        learned.append(time.process_time() - began)
        changed.append((await _ask_all(front))[0])
    return {
        "bytes": size,
        "first_ms": round(first * 1000, 1),
        "cached_ms": _milliseconds(again),
        "after_a_change_ms": _milliseconds(changed),
        "learn_a_change_ms": _milliseconds(learned),
    }


async def _measure(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    storage = open_storage(folder, core=0, cores=1, groups=GROUPS)
    shape = Shape(core=0, cores=1, groups=GROUPS, history=1, hot_bytes_max=1 << 26)
    faults: list[BaseException] = []
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)  # noqa: E731
    core = CoreRuntime(storage, shape, now_ms=now_ms, transport=None, fatal=faults.append)
    ids = itertools.count(1 << 64)
    front = KafkaFront(
        core.service,
        OneBroker(),
        core.group_coordinator,
        new_id=lambda: next(ids).to_bytes(16),
    )
    try:
        found: dict[str, Any] = {"topics": asked.topics, "partitions_each": asked.partitions}
        began = time.perf_counter()
        await front.context.topics.create("created", asked.created, [])
        found["created_partitions"] = asked.created
        found["created_seconds"] = round(time.perf_counter() - began, 2)
        await _fill(core.service, asked.topics, asked.partitions)
        began = time.process_time()
        await front.context.topics.refresh()
        found["learn_all_ms"] = round((time.process_time() - began) * 1000, 1)
        found["metadata"] = await _metadata(front, core.service)
        assert not faults, faults
        return found
    finally:
        await core.core.drain()
        core.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--created", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(_measure(Path(folder), asked)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
