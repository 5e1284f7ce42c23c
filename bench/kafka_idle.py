"""CPU of a node whose Kafka consumers wait: 100 groups on 1,000 idle partitions.

    python -m bench.kafka_idle [--groups 100] [--partitions 10] [--seconds 30]

Each group has one consumer of aiokafka on a topic of its own, with the usual settings: fetches of
500 ms, heartbeats every 3 s, a commit every 5 s. The CPU is that of the node's processes, less
what they use without consumers.
"""

from __future__ import annotations

import argparse
import asyncio

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench import _results
from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from bench.kafka import OneNode

AT_ONCE = 10


async def used(node: OneNode, seconds: float) -> float:
    """Return the CPU time of the node in the next `seconds`, in percent of a core."""
    before = node.cpu()
    await asyncio.sleep(seconds)
    return (node.cpu() - before) / seconds * 100


async def measure(node: OneNode, arguments: argparse.Namespace) -> Figures:
    topics = [f"idle-{number}" for number in range(arguments.groups)]
    admin = AIOKafkaAdminClient(bootstrap_servers=node.bootstrap)
    await admin.start()
    for topic in topics:
        await admin.create_topics([NewTopic(topic, arguments.partitions, 1)])
    await admin.close()
    await asyncio.sleep(3)
    alone = await used(node, arguments.seconds / 3)
    consumers = [
        AIOKafkaConsumer(topic, bootstrap_servers=node.bootstrap, group_id=f"group-{topic}")
        for topic in topics
    ]
    for begin in range(0, len(consumers), AT_ONCE):
        await asyncio.gather(*(each.start() for each in consumers[begin : begin + AT_ONCE]))
    await asyncio.sleep(10)
    assert all(len(each.assignment()) == arguments.partitions for each in consumers)
    waiting = await used(node, arguments.seconds)
    await asyncio.gather(*(each.stop() for each in consumers))
    return {
        "alone_cpu_percent": alone,
        "server_cpu_percent": waiting,
        "consumers_cpu_percent": waiting - alone,
    }


def run_once(arguments: argparse.Namespace) -> Figures:
    node = OneNode(arguments.directory)
    try:
        return asyncio.run(measure(node, arguments))
    finally:
        node.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    print(machine())
    runs = in_turn(["polynya"], arguments.rounds, lambda _: run_once(arguments))
    print(table("server", runs))
    if arguments.save:
        _results.save("kafka_idle", runs)


if __name__ == "__main__":
    main()
