"""A Java producer, a Java consumer and an HTTP producer use one topic while its profile changes and
nodes are killed: no record is lost, repeated or out of order, and each is one row of both tables.

`make long` changes the profile twenty times, kills a node every ten seconds, and stores in S3."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import java_programs
import pytest
from clients.test_kafka_clients import JAVA, libraries
from clients.test_kafka_failover import servers
from polling import wait_until
from s3_server import s3_server
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.pipeline import PipeWorld

from polynya import client

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["libraries", "s3_server"]
PROGRAM = Path(__file__).parent / "kafka_java" / "Steady.java"
STREAMS = tuple(f"shop/orders/{number}" for number in range(3))
TOPIC, TABLE = "orders", "orders"
RECORDS = 1000  # that Java writes at least
KILL_SECONDS = 10.0  # from one kill to the next
SECONDS = 300
PROFILES = ("diskless", "replicated")


class Tables(PipeWorld):
    """The tables of a cluster."""

    def __init__(self, folder: Path, cluster: DevCluster, **variables: str) -> None:
        super().__init__(folder, **variables)
        self._url = cluster.urls[0]

    @property
    def node(self) -> Any:
        ports = self.http.get(f"{self._url}/v1/node").json()["ports"]
        return SimpleNamespace(url=self._url, admin=f"http://127.0.0.1:{ports['admin']}")


class Helper(threading.Thread):
    """A thread that repeats `step` until the test stops it. `finish` raises its error."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopping, self.steps = threading.Event(), 0
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        self.stopping.set()
        self.join(SECONDS)
        assert not self.is_alive(), f"{type(self).__name__} hangs"
        if self._error is not None:
            raise self._error

    def step(self) -> None:
        raise NotImplementedError


class HttpWriter(Helper):
    """An idempotent producer of the Python client: `steps` records are acknowledged."""

    def __init__(self, cluster: DevCluster) -> None:
        super().__init__()
        self._client = client.Client(
            cluster.urls, retry=client.Retry(seconds=120.0, pause_seconds_max=1.0)
        )
        self._producer = self._client.stream(STREAMS[0]).producer("http")

    def step(self) -> None:
        receipts = [
            self._producer.append({"by": "http", "n": 10 * self.steps + number})
            for number in range(10)
        ]
        for receipt in receipts:
            receipt.result(SECONDS)
        self.stopping.wait(0.02)

    def finish(self) -> None:
        super().finish()
        self._producer.close()
        self._client.close()


class Switcher(Helper):
    """Changes the profile of the topic: `steps` changes are done. Appends go on before the next."""

    def __init__(self, cluster: DevCluster, writer: HttpWriter) -> None:
        super().__init__()
        self._cluster, self._writer = cluster, writer

    def step(self) -> None:
        before = self._writer.steps
        change_profile(self._cluster, PROFILES[self.steps % 2])
        wait_until(
            lambda: self._writer.steps > before + 2 or not self._writer.is_alive(),
            what="appends to go on",
            seconds=90,
        )


def kill_one(cluster: DevCluster, node: int, ending: threading.Event) -> None:
    """Kill a node and start it again. Its processes end with the thread that starts it, so this is
    no helper's work."""
    until = time.monotonic() + KILL_SECONDS
    cluster.kill(node)
    ending.wait(1)
    cluster.start(node)
    cluster.wait_until_well(node)
    ending.wait(max(0.0, until - time.monotonic()))


@contextmanager
def java_clients(cluster: DevCluster, libraries: Path) -> Iterator[subprocess.Popen[str]]:
    """The Java producer and consumer, once they work."""
    arguments = [servers(cluster), TOPIC, str(len(STREAMS)), str(RECORDS)]
    command = ["java", *JAVA, *java_programs.compiled(PROGRAM, libraries), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "go\n"
            yield running
        finally:
            running.kill()


def change_profile(cluster: DevCluster, profile: str) -> None:
    """Change the profile of the topic at any node; a refusal is repeated, as its text says."""
    turns, refusals = count(), list[str]()

    def changed() -> bool:
        url = cluster.urls[next(turns) % len(cluster.urls)]
        try:
            answer = httpx.patch(
                f"{url}/v1/topics/{TOPIC}", json={"configs": {"profile": profile}}, timeout=60
            )
        except httpx.TransportError as fault:
            refusals.append(repr(fault))
            return False
        assert answer.status_code in (200, 409, 503), answer.text
        refusals.append(answer.text)
        return answer.status_code == 200

    try:
        wait_until(changed, what=f"the profile to be {profile}", seconds=90, pause=0.3)
    except AssertionError as fault:
        raise AssertionError(f"{fault}: {refusals[-3:]}") from None


def set_up(cluster: DevCluster) -> None:
    """Create the streams, the topic that adopts them, and the table."""
    for name in STREAMS:
        kind = {"content-type": "application/json"}
        made = httpx.put(f"{cluster.urls[0]}/v1/stream/{name}", headers=kind, timeout=60)
        assert made.status_code == 201, made.text
    wanted = {"streams": list(STREAMS)}
    made = httpx.put(f"{cluster.urls[0]}/v1/topics/{TOPIC}", json=wanted, timeout=60)
    assert made.status_code == 201, made.text
    made = httpx.put(
        f"{cluster.urls[0]}/v1/tables/{TABLE}", json={"prefix": "shop/orders/"}, timeout=60
    )
    assert made.status_code == 201, made.text


def records(cluster: DevCluster) -> dict[str, list[tuple[str, int]]]:
    """Return writer and number of each record of each stream, in order."""
    with client.Client(cluster.urls) as reader:
        return {
            name: [(each.value["by"], each.value["n"]) for each in reader.stream(name).read()]
            for name in STREAMS
        }


def written(cluster: DevCluster, libraries: Path, switches: int, kills: int) -> tuple[int, int]:
    """Run the clients, and at least that many changes of the profile beside the kills. Return the
    records of Java and HTTP."""
    nodes = random.Random(7)
    with java_clients(cluster, libraries) as java:
        writer = HttpWriter(cluster)
        switcher = Switcher(cluster, writer)
        writer.start()
        switcher.start()
        try:
            while kills > 0 or (switcher.steps < switches and switcher.is_alive()):
                kill_one(cluster, nodes.randint(1, 3), switcher.stopping)
                kills -= 1
        finally:
            switcher.finish()
            writer.finish()
        said, errors = java.communicate(f"{10 * writer.steps}\n", timeout=SECONDS)
    assert java.returncode == 0, said + errors[-2000:]
    assert int(said) >= RECORDS and switcher.steps >= switches
    return int(said), 10 * writer.steps


def check(cluster: DevCluster, folder: Path, counts: tuple[int, int], **variables: str) -> None:
    """Each record is there once and in order, and is one row of both tables."""
    java, http = counts
    found = records(cluster)
    for number, name in enumerate(STREAMS):
        by_java = [each for writer, each in found[name] if writer == "java"]
        assert by_java == list(range(len(range(number, java, len(STREAMS))))), name
        by_http = [each for writer, each in found[name] if writer == "http"]
        assert by_http == (list(range(http)) if number == 0 else []), name
    tables = Tables(folder, cluster, **variables)
    try:
        tables.compact_here(TABLE)
        wanted = {
            (name, offset, *each)
            for name, rows in found.items()
            for offset, each in enumerate(rows)
        }
        for rows in (tables.iceberg(TABLE), tables.delta(TABLE)):
            stored = [
                (row["stream"], row["offset"], *json.loads(row["value"]).values()) for row in rows
            ]
            assert len(stored) == len(wanted) and set(stored) == wanted
    finally:
        tables.close()


def test_a_topic_changes_its_profile_while_java_and_http_use_it_and_nodes_die(
    tmp_path: Path, libraries: Path
) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1") as cluster:
        set_up(cluster)
        check(cluster, tmp_path / "t", written(cluster, libraries, 2, 1))


@pytest.mark.long
def test_a_topic_changes_its_profile_twenty_times_over_s3_under_constant_kills(
    tmp_path: Path, libraries: Path, s3_server: Any
) -> None:
    variables = {
        f"POLYNYA_COLD_{name.upper()}": value for name, value in s3_server.settings().items()
    }
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1", **variables) as cluster:
        set_up(cluster)
        check(cluster, tmp_path / "t", written(cluster, libraries, 20, 8), **variables)
