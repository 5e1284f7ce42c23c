"""Kafka produce beside passes of key compaction: records a second of one producer at full speed (1 KiB values,
acks=all), alone and while passes of another topic follow one another, on one node of one core.

    python -m bench.compaction_beside [--seconds 15] [--rounds 3] [--mb 128]

The passes read at the rate of merging (32 MiB/s a core), and decode in their subprocess; the first one, before
the runs, drops every other record. The target is at least 0.8 of the rate alone. The load of the machine is printed:
on two cores the producer, the node and the subprocess share them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
import urllib.request
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from bench.kafka import OneNode

COMPACTED, PLAIN = "compacted", "plain"
VALUE_BYTES = 1024
NAMES = ("alone", "beside")
FORCE_SECONDS = 0.2


def compaction(node: OneNode, method: str) -> dict[str, Any]:
    """Ask for a pass, or for the outcome of the last one."""
    url = f"{node.url}/v1/compaction/kafka/{COMPACTED}/0"
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        return dict(json.load(answer))


def fill(node: OneNode, megabytes: int) -> None:
    """Create both topics, and write each key of the compacted one twice."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.99"}
    topics = [NewTopic(COMPACTED, 1, config=config), NewTopic(PLAIN, 1)]
    for made in admin.create_topics(topics).values():
        made.result(60)
    draw, client = random.Random(1), Producer({"bootstrap.servers": node.bootstrap})
    count = megabytes * 1024
    for number in range(count):
        send(client, COMPACTED, draw, f"key-{number % (count // 2)}".encode())
    client.flush()
    compaction(node, "POST")  # it flushes too
    while compaction(node, "GET")["last_pass"] is None:
        time.sleep(FORCE_SECONDS)


def send(client: Any, topic: str, draw: random.Random, key: bytes | None) -> None:
    """Send one record once the queue of the client has room."""
    value = draw.randbytes(VALUE_BYTES // 2).hex()
    while True:
        try:
            client.produce(topic, value, key, 0)
            client.poll(0)
            return
        except BufferError:
            client.poll(0.1)


def produced(node: OneNode, seconds: float) -> float:
    """Return the acknowledged records a second of one producer."""
    acknowledged = 0

    def delivered(error: Any, message: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    client = Producer({"bootstrap.servers": node.bootstrap, "on_delivery": delivered})
    value, began = random.Random(2).randbytes(VALUE_BYTES), time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            client.produce(PLAIN, value, None, 0)
            client.poll(0)
        except BufferError:
            client.poll(0.01)
    client.flush()
    return acknowledged / (time.monotonic() - began)


class Passes:
    """Passes that follow one another until `end`."""

    def __init__(self, node: OneNode) -> None:
        self._node, self._over = node, threading.Event()
        self.ended: set[str] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self.ended.add(compaction(self._node, "POST")["last_pass"]["ended_at"])
            self._over.wait(FORCE_SECONDS)

    def end(self) -> int:
        """Return how many passes ended meanwhile."""
        self._over.set()
        self._thread.join()
        return len(self.ended) - 1


def measure(node: OneNode, name: str, seconds: float) -> Figures:
    passes = Passes(node) if name == "beside" else None
    rate = produced(node, seconds)
    found = {
        "records_per_second": rate,
        "passes": 0.0,
        "pass_mb_per_second": 0.0,
    }
    if passes is not None:
        found["passes"] = float(passes.end())
        last = compaction(node, "GET")["last_pass"]
        found["pass_mb_per_second"] = last["read_bytes"] / max(last["seconds"], 1e-3) / 1e6
    return found | {"load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=128, help="of the compacted topic")
    parser.add_argument("--directory", help="for the node's data")
    given = parser.parse_args()
    node = OneNode(given.directory)
    try:
        fill(node, given.mb)
        runs = in_turn(NAMES, given.rounds, lambda name: measure(node, name, given.seconds))
    finally:
        node.close()
    alone, beside = (sum(run["records_per_second"] for run in runs[name]) for name in NAMES)
    print(machine())
    print(table("produce", runs))
    print(f"beside passes: {beside / alone:.2f} of the rate alone (target: at least 0.80)")


if __name__ == "__main__":
    main()
