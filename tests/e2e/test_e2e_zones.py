"""Three nodes in three zones: what crosses zones, and whom clients are sent to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import java_programs
import pytest
from clients.test_kafka_clients import JAVA, libraries
from clients.test_kafka_failover import BROKERS_PER_NODE
from confluent_kafka.admin import AdminClient
from free_ports import free_ports, two_free_ports
from polling import wait_until
from product import RunningNode, environment

pytestmark = pytest.mark.process
__all__ = ["libraries"]

STEADY = Path(__file__).parents[1] / "clients" / "kafka_java" / "Steady.java"
ZONES = ("a", "b", "c")
BODY = json.dumps(["x" * 30_000]).encode()
APPENDS = 12
WRITER = """
import sys
from confluent_kafka import Producer
errors = []
producer = Producer({"bootstrap.servers": sys.argv[1], "client.id": sys.argv[2]})
for number in range(100):
    producer.produce(sys.argv[3], partition=number % 4, value=b"x" * 1000, on_delivery=lambda e, m: errors.append(e) if e else None)
print(f"left {producer.flush(60)} errors {errors[:3]}")
"""


class Zones:
    """The nodes, one in each zone, with one object store."""

    def __init__(self, nodes: list[RunningNode]) -> None:
        self.nodes = nodes

    def ask(self, method: str, url: str, body: bytes | None = None, **headers: str) -> Any:
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}

        def answered() -> Any:
            try:
                with urlopen(Request(url, body, spelled, method=method), timeout=60) as answer:
                    return answer.headers, answer.read()
            except HTTPError as refused:
                if refused.headers["Stream-Outcome"] != "refused" or refused.code != 503:
                    raise
                return None  # the group elects a leader

        return wait_until(answered, what=f"{method} {url} to be accepted", seconds=60)

    def write(self, name: str, appends: int = APPENDS, **headers: str) -> None:
        """Create a stream, and append to it at each of the nodes, as clients in their zones."""
        kind = {"content_type": "application/json"}
        path = f"/v1/stream/{name}"
        self.ask("PUT", self.nodes[0].url + path, **kind, **headers)
        for turn in range(appends):
            node, zone = self.nodes[turn % 3], ZONES[turn % 3]
            self.ask("POST", node.url + path, BODY, **kind, stream_zone=zone)

    def batches(self, node: RunningNode) -> int:
        """Return the batches that Kafka producers wrote at a node."""
        _, body = self.ask("GET", f"{node.admin}/metrics")
        found = re.search(rb"^polynya_kafka_batches_total (\d+)$", body, re.MULTILINE)
        assert found, body
        return int(found[1])

    def crossed(self) -> dict[str, int]:
        """Return the bytes between zones by their kind."""
        found = {"payload": 0, "catalog": 0}
        _, body = self.ask("GET", f"{self.nodes[0].url}/v1/cost")
        cost = json.loads(body)
        assert not cost["missing"] and cost["shape"]["zones"] == 3
        for node in cost["nodes"]:
            for each in node["usage"]["zones"]:
                if each["from"] != each["to"] and each["from"] and each["to"]:
                    found[each["kind"]] += each["bytes"]
        return found


@pytest.fixture(scope="module")
def zones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zones]:
    folder: Path = tmp_path_factory.mktemp("zones")
    peers, ports = free_ports(3), [two_free_ports() for _ in ZONES]
    listed = ",".join(
        f"{number}=127.0.0.1:{peers[number - 1]}=http://127.0.0.1:{ports[number - 1]}={zone}"
        for number, zone in enumerate(ZONES, 1)
    )
    common = {
        "POLYNYA_CLUSTER_ID": "5a" * 16,
        "POLYNYA_CLUSTER_NODES": listed,
        "POLYNYA_COLD_ROOT": str(folder / "objects"),
        "POLYNYA_COLD_SHARED": "true",
        "POLYNYA_KAFKA_LISTEN": "127.0.0.1:0",
        "POLYNYA_GROUPS": "4",
        "POLYNYA_CORES": "1",
    }
    with ExitStack() as stack:
        nodes = []
        for number in (1, 2, 3):
            flags = ("--listen", f"127.0.0.1:{ports[number - 1]}", "--cluster-node", str(number))
            node = RunningNode(folder / f"node-{number}", flags, **common)
            stack.callback(node.close)
            nodes.append(node)
        found = Zones(nodes)

        def ready() -> bool:
            try:
                return not json.loads(found.ask("GET", f"{nodes[0].url}/v1/cluster")[1])["problems"]
            except OSError:
                return False

        wait_until(ready, what="the cluster to be healthy", seconds=90)
        for node in nodes:
            wait_until(
                partial(knows_brokers, node), what="each node to know all brokers", seconds=60
            )
        yield found


def knows_brokers(node: RunningNode) -> bool:
    admin = AdminClient({"bootstrap.servers": node.kafka, "log_level": 0})
    return len(admin.list_topics(timeout=10).brokers) == len(ZONES)


def test_payload_of_replicated_streams_crosses_zones_and_of_diskless_ones_does_not(
    zones: Zones,
) -> None:
    before = zones.crossed()
    zones.write("copied")
    replicated = zones.crossed()
    payload = replicated["payload"] - before["payload"]
    # two copies in other zones; two of three appends are forwarded to the leader
    assert 2 * APPENDS * len(BODY) < payload < 3 * APPENDS * len(BODY), (before, replicated)
    zones.write("packed", 3, stream_profile="diskless")  # the nodes learn that it is diskless
    learned = zones.crossed()
    zones.write("packed", stream_profile="diskless")
    diskless = zones.crossed()
    assert diskless["payload"] == learned["payload"], (learned, diskless)
    assert diskless["catalog"] > learned["catalog"]


def stream_owner(zones: Zones, url: str, zone: str) -> str | None:
    found: str | None = zones.ask("HEAD", url, stream_zone=zone)[0]["Stream-Owner"]
    return found


def test_http_clients_are_told_the_owner_in_their_zone(zones: Zones) -> None:
    zones.write("owned", 3, stream_profile="diskless")
    path = "/v1/stream/owned"
    for asked, node in enumerate(zones.nodes):
        for zone, owner in zip(ZONES, zones.nodes, strict=True):
            expected = None if asked == ZONES.index(zone) else owner.url
            look = partial(stream_owner, zones, node.url + path, zone)
            wait_until(
                lambda look=look, expected=expected: look() == expected,  # type: ignore[misc]
                what=f"node {asked + 1} to know the owner in zone {zone}",
            )


def written_in_zone_b(zones: Zones, write: Callable[[str], None], *topics: str) -> None:
    """Write to a new diskless topic of four partitions with clients that name zone b: the batches
    go to its node alone, and no payload crosses zones.

    A busy machine may stop a node for so long that it seems to be down. Then the clients use
    another one, rightly, and the next topic is tried."""
    config = json.dumps({"partitions": 4, "configs": {"profile": "diskless"}}).encode()
    found = []
    for topic in topics:
        url = f"{zones.nodes[0].url}/v1/topics/{topic}"
        zones.ask("PUT", url, config, content_type="application/json")
        before, payload = list(map(zones.batches, zones.nodes)), zones.crossed()["payload"]
        write(topic)
        after = map(zones.batches, zones.nodes)
        counts = [now - then for then, now in zip(before, after, strict=True)]
        crossed = zones.crossed()["payload"] - payload
        if counts == [0, counts[1], 0] and counts[1] and not crossed:
            return
        found.append((counts, crossed))
    raise AssertionError(f"batches at each node, and payload between zones: {found}")


def test_a_kafka_producer_writes_to_the_node_in_its_zone(zones: Zones) -> None:
    def write(topic: str) -> None:
        command = [sys.executable, "-c", WRITER, zones.nodes[0].kafka, "app,zone_id=b", topic]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=False
        )
        assert done.stdout == "left 0 errors []\n", done

    written_in_zone_b(zones, write, "near-1", "near-2", "near-3")


def test_java_clients_write_and_read_at_the_node_in_their_zone(
    zones: Zones, libraries: Path
) -> None:
    """The producer names the zone in its `client.id`, the consumer in its `client.rack`."""

    def write(topic: str) -> None:
        arguments = [zones.nodes[0].kafka, topic, "4", "400", "app,zone_id=b", "b"]
        command = ["java", *JAVA, *java_programs.compiled(STEADY, libraries), *arguments]
        done = subprocess.run(
            command, input="0\n", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        said = done.stdout.split()
        assert said[:2] == ["go", "400"]
        # -1: the node in zone b told the consumer, and named itself the leader
        preferred = {int(broker) // BROKERS_PER_NODE for broker in said[2:] if broker != "-1"}
        assert preferred <= {2}, said

    written_in_zone_b(zones, write, "java-1", "java-2", "java-3")
