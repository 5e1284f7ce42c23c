"""A default Java producer and a default Java consumer while leaders move, restart and die: no error,
and no record that is lost, repeated or out of order. A consumer in the rack of a follower reads from
it.

`make kafka-full` runs more rounds with more records."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import java_programs
import pytest
from clients.test_kafka_clients import libraries
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import run

pytestmark = pytest.mark.process
__all__ = ["libraries"]
PROGRAMS = Path(__file__).parent / "kafka_java"
PROGRAM, NEARBY = PROGRAMS / "Steady.java", PROGRAMS / "Nearby.java"
NEARBY_RECORDS = 400
ROUNDS = int(os.environ.get("KAFKA_ROUNDS", "1"))
RECORDS = int(os.environ.get("KAFKA_RECORDS", "1000"))
CORES = int(os.environ.get("KAFKA_CORES", "1"))  # of each node
PARTITIONS = 6
SECONDS = 300
BROKERS_PER_NODE = 256  # ids
NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    if shutil.which("javac") is None:
        from missing import left_out

        left_out("a Java client: a JDK 17 or newer is not installed")
    folder = tmp_path_factory.mktemp("failover") / "c"
    with dev_cluster(folder, "--nodes", "3", "--cores", str(CORES)) as running:
        for node in NODES:  # in effect from its next start on
            settings = running.node(node) / "polynya.toml"
            named = settings.read_text().replace(
                f"\nid = {node}\n", f'\nid = {node}\nzone = "z{node}"\n'
            )
            settings.write_text(named)
        yield running


@pytest.fixture
def zones(cluster: DevCluster) -> dict[int, str]:
    """Return the racks of the brokers, after a restart of the nodes that have none yet."""
    for node in NODES:
        if node not in racks(cluster):
            restart(cluster, node)
    wait_until(lambda: len(racks(cluster)) == len(NODES), what="each node to have a zone")
    return racks(cluster)


def racks(cluster: DevCluster) -> dict[int, str]:
    """Return the zone of each node that has one, by its node number."""
    nodes = cluster.view(1)["nodes"]
    return {int(each["id"]): each["zone"] for each in nodes if each.get("zone")}


def restart(cluster: DevCluster, node: int) -> None:
    cluster.stop_node(node)
    cluster.start(node)
    cluster.wait_until_well(node)


def servers(cluster: DevCluster) -> str:
    """Return the Kafka bootstrap addresses: the fourth port of each node."""
    return ",".join(f"127.0.0.1:{int(url.rpartition(':')[2]) + 3}" for url in cluster.urls)


def leaders(cluster: DevCluster, topic: str) -> list[int]:
    """Return the nodes that lead the partitions."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": servers(cluster)}).list_topics(
        topic, timeout=SECONDS
    )
    partitions = metadata.topics[topic].partitions
    return [partitions[number].leader // BROKERS_PER_NODE for number in sorted(partitions)]


@contextmanager
def clients(cluster: DevCluster, libraries: Path, topic: str) -> Iterator[None]:
    """Run the producer and the consumer of a new topic around the body."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers(cluster)})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(SECONDS)

    def all_are_brokers() -> bool:
        found = admin.list_topics(timeout=SECONDS).brokers
        return {each // BROKERS_PER_NODE for each in found} == {1, 2, 3} and len(found) == 3 * CORES

    wait_until(all_are_brokers, what="each core of three nodes to be a broker")
    arguments = [servers(cluster), topic, str(PARTITIONS), str(RECORDS)]
    with subprocess.Popen(
        [
            "java",
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            *java_programs.compiled(PROGRAM, libraries),
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "go\n"
            yield
            said, errors = running.communicate("0\n", timeout=SECONDS)
        finally:
            running.kill()
    assert running.returncode == 0, said + errors[-2000:]
    assert int(said) >= RECORDS


def called(cluster: DevCluster, *arguments: str) -> None:
    ran = run("cluster", *arguments, server=cluster.urls[1], seconds=SECONDS)
    assert ran.code == 0, ran


def test_clients_see_no_error_while_leaders_move_restart_and_die(
    cluster: DevCluster, libraries: Path
) -> None:
    with clients(cluster, libraries, "steady"):
        called(cluster, "drain", "1", "--wait")
        wait_until(lambda: 1 not in leaders(cluster, "steady"), what="all to know the new leaders")
        called(cluster, "uncordon", "1")
        for node in NODES:
            restart(cluster, node)
        for _ in range(ROUNDS):
            node = next(filter(None, leaders(cluster, "steady")))
            cluster.kill(node)
            cluster.start(node)
            cluster.wait_until_well(node)


def test_a_java_consumer_reads_from_the_follower_in_its_rack(
    cluster: DevCluster, libraries: Path, zones: dict[int, str]
) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    at = servers(cluster)
    admin = AdminClient({"bootstrap.servers": at})
    admin.create_topics([NewTopic("near", 1)])["near"].result(SECONDS)
    producer = Producer({"bootstrap.servers": at, "batch.num.messages": 20})
    for number in range(NEARBY_RECORDS):
        producer.produce("near", b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    leader, now = 0, leaders(cluster, "near")[0]
    while leader != now:  # after the restarts of another test, leads still go home
        leader = now
        follower = next(node for node in NODES if node != leader)
        arguments = [at, "near", zones[follower], str(NEARBY_RECORDS)]
        command = [
            "java",
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            *java_programs.compiled(NEARBY, libraries),
        ]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        (now,) = leaders(cluster, "near")
    said = done.stdout.split()
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    brokers = {int(each) // BROKERS_PER_NODE for each in said}
    assert (len(said), brokers) == (2, {follower}), said
