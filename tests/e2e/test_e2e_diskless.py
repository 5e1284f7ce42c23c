"""Diskless streams on real nodes, by HTTP, the command line and Kafka clients: on one node, and on
three with a shared object store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from polling import wait_until
from product import RunningNode, polynya, running_node
from worlds.dev_cluster import DevCluster, dev_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
DISKLESS = {"Stream-Profile": "diskless"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data", "--cores", "2") as node:
        yield node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cluster") / "c"
    with dev_cluster(folder, "--nodes", "3", "--cores", "1") as cluster:
        yield cluster


def put(url: str, name: str, **headers: str) -> int:
    named = {"Content-Type": "application/json", **headers}
    with urlopen(Request(f"{url}/v1/stream/{name}", method="PUT", headers=named)) as response:
        assert isinstance(response.status, int)
        return response.status


def append(url: str, name: str, value: Any, **headers: str) -> dict[str, str]:
    named = {"Content-Type": "application/json", **headers}
    body = json.dumps(value).encode()
    with urlopen(Request(f"{url}/v1/stream/{name}", body, named)) as response:
        return dict(response.headers)


def records(url: str, name: str) -> list[Any]:
    with urlopen(f"{url}/v1/stream/{name}?offset=-1") as response:
        found: list[Any] = json.load(response)
        assert response.headers["Stream-Up-To-Date"] == "true"
        return found


def profile(url: str, name: str) -> str | None:
    with urlopen(Request(f"{url}/v1/stream/{name}", method="HEAD")) as response:
        found: str | None = response.headers["Stream-Profile"]
        return found


def metric(node: RunningNode, name: str) -> float:
    def value(lines: list[str], name: str) -> float:
        starts = (f"{name} ", f"{name}{{")
        return sum(float(line.split()[-1]) for line in lines if line.startswith(starts))

    def whole() -> list[str] | None:  # a busy core may be missing
        with urlopen(f"{node.admin}/metrics") as response:
            lines = response.read().decode().splitlines()
        return lines if value(lines, "polynya_cores_up") == value(lines, "polynya_cores") else None

    return value(wait_until(whole, what="what all cores count"), name)


def test_what_is_appended_is_read_in_every_way(node: RunningNode) -> None:
    assert put(node.url, "d/a", **DISKLESS) == 201
    assert put(node.url, "d/a", **DISKLESS) == put(node.url, "d/a") == 200
    assert profile(node.url, "d/a") == "diskless"
    ear = urlopen(f"{node.url}/v1/stream/d/a?offset=-1&live=sse", timeout=30)
    for number in range(4):
        append(node.url, "d/a", {"n": number})
    values = [{"n": number} for number in range(4)]
    assert records(node.url, "d/a") == values
    heard: list[Any] = []
    while len(heard) < 4:
        line = ear.readline().decode().strip()
        if line.startswith(("data:[", "data: [")):
            heard += json.loads(line.removeprefix("data:"))
    assert heard == values
    ear.close()
    waited: list[Any] = []
    tail = append(node.url, "d/a", {"n": 4})["Stream-Next-Offset"]

    def wait() -> None:
        with urlopen(f"{node.url}/v1/stream/d/a?offset={tail}&live=long-poll", timeout=30) as page:
            waited.extend(json.load(page))

    waiting = threading.Thread(target=wait)
    waiting.start()
    append(node.url, "d/a", {"n": 5})
    waiting.join(30)
    assert waited == [{"n": 5}]
    assert metric(node, "polynya_diskless_commits_total") >= 5
    wait_until(
        lambda: metric(node, "polynya_diskless_appends_waiting") == 0, what="no append to wait"
    )


def test_producers_closes_and_conditions_work_as_elsewhere(node: RunningNode) -> None:
    put(node.url, "d/b", **DISKLESS)
    first = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    assert append(node.url, "d/b", 0, **first)["Producer-Seq"] == "0"
    assert append(node.url, "d/b", 0, **first)["Stream-Record-Start"] == "0"
    for headers, status in (
        ({**first, "Producer-Seq": "5"}, 409),
        ({"Content-Type": "text/plain"}, 409),
        ({"Stream-Incarnation": "77"}, 412),
    ):
        with pytest.raises(HTTPError) as refused:
            append(node.url, "d/b", 1, **headers)
        assert refused.value.code == status
    assert append(node.url, "d/b", 1, **{"Stream-Closed": "true"})["Stream-Closed"] == "true"
    with pytest.raises(HTTPError, match="409"):
        append(node.url, "d/b", 2)
    assert records(node.url, "d/b") == [0, 1]


def test_a_stream_changes_its_profile_while_it_is_written(node: RunningNode) -> None:
    put(node.url, "d/c")
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            try:
                append(node.url, "d/c", len(written))
            except HTTPError as held:  # the change took longer than an append waits for it
                if held.code != 503:
                    raise
                continue
            written.append(len(written))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for wanted in ("diskless", "replicated", "diskless"):
            before = len(written)
            done = polynya("stream", "profile", "d/c", wanted, server=node.url)
            assert done.code == 0, done.err
            assert polynya("stream", "profile", "d/c", server=node.url).out == f"{wanted}\n"
            wait_until(lambda before=before: len(written) > before + 2, what="appends to go on")  # type: ignore[misc]
    finally:
        stop.set()
        writing.join(30)
    assert records(node.url, "d/c") == written
    assert polynya("info", "d/c", "--json", server=node.url).out.count('"diskless"') == 1


def test_kafka_clients_write_and_read_a_diskless_topic(node: RunningNode) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    made = polynya(
        "topic", "create", "clicks", "--partitions", "2", "--config", "profile=diskless",
        server=node.url,
    )  # fmt: skip
    assert made.code == 0, made.err
    assert profile(node.url, "kafka/clicks/0") == "diskless"
    faults: list[Any] = []
    writer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    for number in range(200):
        writer.produce(
            "clicks",
            b"%d" % number,
            partition=number % 2,
            on_delivery=lambda fault, message: faults.append(fault) if fault else None,
        )
    assert (writer.flush(60), faults) == (0, [])
    reader = Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
    reader.assign([TopicPartition("clicks", partition, 0) for partition in range(2)])
    found: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(600):
        message = reader.poll(0.1)
        if message is not None:
            assert not message.error()
            found[message.partition()].append(int(message.value()))
        if sum(map(len, found.values())) == 200:
            break
    reader.close()
    assert found == {0: [*range(0, 200, 2)], 1: [*range(1, 200, 2)]}
    changed = polynya("topic", "alter", "clicks", "--config", "profile=replicated", server=node.url)
    assert changed.code == 0, changed.err
    assert profile(node.url, "kafka/clicks/1") is None


def test_a_node_without_an_object_store_says_what_is_missing(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--cores", "1", "--cold-backend", "none") as node:
        with pytest.raises(HTTPError) as refused:
            put(node.url, "d/a", **DISKLESS)
        assert refused.value.code == 400
        assert "cold.backend" in refused.value.read().decode()
        topic = polynya("topic", "create", "t", "--config", "profile=diskless", server=node.url)
        assert topic.code == 1
        assert "cold.backend" in topic.err
        put(node.url, "d/b")
        changed = polynya("stream", "profile", "d/b", "diskless", server=node.url)
        assert changed.code == 1
        assert "cold.backend" in changed.err


def test_all_nodes_follow_the_default_profile_of_a_bucket(cluster: DevCluster) -> None:
    done = polynya("bucket", "profile", "logs", "diskless", server=cluster.urls[0])
    assert done.code == 0, done.err
    names = (f"logs/{number}" for number in count())

    def is_followed_by(url: str) -> bool:
        name = next(names)
        assert put(url, name) == 201
        return profile(url, name) == "diskless"

    for url in cluster.urls:
        wait_until(lambda url=url: is_followed_by(url), what=f"{url} to follow")  # type: ignore[misc]
    assert "logs    diskless" in polynya("bucket", "ls", server=cluster.urls[2]).out
    refused = polynya("bucket", "profile", "a/b\r\n?", "diskless", server=cluster.urls[2])
    assert refused.code in (1, 2) and "Traceback" not in refused.err, "it is no bucket's name"
    assert put(cluster.urls[1], "logs/named", **{"Stream-Profile": "replicated"}) == 201
    assert profile(cluster.urls[1], "logs/named") is None


def test_any_node_takes_appends_and_nothing_is_lost_when_one_dies(cluster: DevCluster) -> None:
    put(cluster.urls[0], "d/a", **DISKLESS)
    acknowledged: list[int] = []
    stop = threading.Event()

    def write(writer: int) -> None:
        url, sequence = cluster.urls[writer], 0
        while True:  # what was sent last may be stored: again, until it is acknowledged
            value = writer * 1_000_000 + sequence
            try:
                append(
                    url,
                    "d/a",
                    value,
                    **{
                        "Producer-Id": f"w{writer}",
                        "Producer-Epoch": "0",
                        "Producer-Seq": str(sequence),
                    },
                )
            except OSError:  # 503, or the node is gone: the same again, at the next node
                url = cluster.urls[(cluster.urls.index(url) + 1) % 3]
                continue
            acknowledged.append(value)
            sequence += 1
            if stop.is_set():
                return

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        wait_until(lambda: len(acknowledged) > 10, what="appends at all nodes")
        cluster.kill(2)
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) > before + 20, what="appends without a node")
        cluster.start(2)
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    cluster.wait_until_well(2)
    for url in cluster.urls:
        found = records(url, "d/a")
        assert sorted(found) == sorted(acknowledged), "each once"
        for writer in range(3):
            mine = [value for value in found if value // 1_000_000 == writer]
            assert mine == sorted(mine), "in the order of its producer"
