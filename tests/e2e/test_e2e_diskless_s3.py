"""Diskless streams of three nodes on a real S3 server: what `polynya cost` counts beside the log of
the server, and appends while the server fails."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from long_tests import every_nth, long
from polling import wait_until
from product import polynya
from s3_server import S3Server, s3_server
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.faulty_store import FAIR, FaultyStore, Weather, faulty
from worlds.real_cluster import Writer, ask, records
from worlds.s3_log import S3Log, logged

from polynya.objectstore import REQUESTS
from polynya.objectstore.usage import DOWN, UP

__all__ = ["s3_server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

DISKLESS = {"Stream-Profile": "diskless"}
TOPIC = "clicks"
AWAY_SECONDS = 3.0
QUIET_SECONDS = 1.0
MORE = 6  # appends of each writer before and after a fault
RECORD = "x" * 5_000
APPENDS = 40  # of each HTTP writer
FAULTS = {  # how the server fails, and what requests then meet; with "" for `AWAY_SECONDS`
    "refuses": (Weather(refused=0.7), "503"),
    "slow": (Weather(late=(0.3, 1.0)), "late"),
    "done and not told": (Weather(untold=0.5), "done, and not told"),
    "torn answers": (Weather(torn=0.5), "a torn answer"),
    "racing puts": (Weather(clashing=0.5), "409"),
    "away": (Weather(gone="refuses"), ""),
    "silent": (Weather(gone="is silent"), "no answer"),
}


class S3World(NamedTuple):
    """The cluster, the proxy that fails, and the log of the requests that passed it."""

    cluster: DevCluster
    store: FaultyStore
    log: S3Log


@pytest.fixture(scope="module")
def world(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3World]:
    flags = ("--nodes", "3", "--cores", "1", "--diskless-interval", "50ms")
    folder = tmp_path_factory.mktemp("cluster") / "c"
    with logged(s3_server.endpoint) as (endpoint, log), faulty(endpoint) as store:
        settings = s3_server.settings() | {"s3_endpoint": store.endpoint}
        named = {f"POLYNYA_COLD_{name.upper()}": value for name, value in settings.items()}
        named["POLYNYA_COLD_COMPRESSION"] = "none"  # so many bytes that their counts say much
        with dev_cluster(folder, *flags, **named) as cluster:
            yield S3World(cluster, store, log)


@pytest.fixture
def writers(world: S3World) -> Iterator[list[Writer]]:
    """Yield one idempotent HTTP writer at each node, with a stream of its own."""
    made = []
    for number, url in enumerate(world.cluster.urls):
        name = f"faults/{time.monotonic_ns()}-{number}"
        assert ask("PUT", f"{url}/v1/stream/{name}", **DISKLESS)[0] == 201
        made.append(Writer(url, name))
    for writer in made:
        writer.start()
    yield made
    world.store.turn(FAIR)
    for writer in made:
        writer.stopping.set()
        writer.join(60)


class Counts(NamedTuple):
    """Counters of the nodes, and requests that the server answered."""

    counted: Counter[str]
    logged: Counter[str]

    def since(self, before: Counts) -> Counts:
        return Counts(self.counted - before.counted, self.logged - before.logged)


def counts(world: S3World) -> Counts:
    """Look at both once nothing has changed for `QUIET_SECONDS`: the log has a request some time
    before the node that made it counts it."""

    def look() -> Counts:
        shown = polynya("cost", "--json", "--hours", "2", server=world.cluster.urls[0])
        assert shown.code == 0, shown
        counted = Counter[str]()
        for node in json.loads(shown.out)["nodes"]:
            for calls in node["usage"]["store"].values():
                counted.update(calls)
        return Counts(counted, Counter(world.log.counts))

    def settled() -> Counts | None:
        first, until = look(), time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            if look() != first:
                return None
        return first

    return wait_until(settled, what="the store to be idle", seconds=30)


def produce(world: S3World) -> None:
    """Write to a diskless topic with a Kafka client, in batches of many packs."""
    from confluent_kafka import Producer

    made = polynya(
        *("topic", "create", TOPIC, "--partitions", "3", "--config", "profile=diskless"),
        server=world.cluster.urls[1],
    )
    assert made.code == 0, made
    said = "".join(world.cluster.log)
    brokers = next(line.split()[1] for line in said.splitlines() if line.startswith("  Kafka"))
    faults: list[Any] = []
    writer = Producer(
        {"bootstrap.servers": brokers, "enable.idempotence": True, "batch.size": 20_000}
    )
    for number in range(300):
        writer.produce(
            TOPIC,
            RECORD.encode(),
            partition=number % 3,
            on_delivery=lambda fault, message: faults.append(fault) if fault else None,
        )
        writer.poll(0)
    assert (writer.flush(60), faults) == (0, [])


def append_all(world: S3World, name: str) -> None:
    """Append to one stream through each node in turn, which stores its own packs."""
    for number in range(APPENDS):
        url = world.cluster.urls[number % 3]
        body = json.dumps([number, RECORD]).encode()
        assert ask("POST", f"{url}/v1/stream/{name}", body)[0] == 204


def size_of(stream: str) -> int:
    """Count the bytes of a stream, read page by page."""
    size, offset, ended = 0, "-1", False
    while not ended:
        with urlopen(f"{stream}?offset={offset}", timeout=30) as page:
            size += len(page.read())
            offset, ended = page.headers["Stream-Next-Offset"], page.headers["Stream-Up-To-Date"]
    return size


def test_cost_agrees_with_the_log_of_the_s3_server(world: S3World) -> None:
    before = counts(world)
    urls = world.cluster.urls
    assert ask("PUT", f"{urls[0]}/v1/stream/cost/a", **DISKLESS)[0] == 201
    appending = threading.Thread(target=append_all, args=(world, "cost/a"))
    appending.start()
    produce(world)
    appending.join(60)
    for url in urls:  # each has stored a third, and fetches the others
        assert len(records(url, "cost/a")) == 2 * APPENDS
    for partition in range(3):
        assert size_of(f"{urls[2]}/v1/stream/kafka/{TOPIC}/{partition}") >= 100 * len(RECORD)
    found = counts(world).since(before)
    assert found.counted["put"] > 30 and found.counted["get"] > 30, found
    assert found.counted[UP] > 300 * len(RECORD) and found.counted[DOWN] > APPENDS * len(RECORD)
    for name in (*REQUESTS, UP, DOWN):
        assert abs(found.counted[name] - found.logged[name]) <= 0.01 * found.logged[name], (
            name,
            found,
        )


def more(writers: list[Writer], what: str) -> None:
    """Wait until each writer has written some more."""
    wanted = [writer.acknowledged + MORE for writer in writers]
    wait_until(
        lambda: all(w.acknowledged >= least for w, least in zip(writers, wanted, strict=True)),
        what=what,
    )


@pytest.mark.parametrize("fault", every_nth(FAULTS, 2))
def test_appends_wait_while_the_s3_server_fails_and_nothing_is_lost(
    world: S3World, writers: list[Writer], fault: str
) -> None:
    weather, met = FAULTS[fault]
    more(writers, "appends before the fault")
    before = world.store.met[met]
    until = time.monotonic() + AWAY_SECONDS
    world.store.turn(weather)
    wait_until(
        lambda: time.monotonic() > until if not met else world.store.met[met] >= before + 3,
        what=f"requests while the server is {fault}",
    )
    world.store.turn(FAIR)
    more(writers, "appends after the fault, without help")
    check(world, writers)


@pytest.mark.parametrize("seconds", long([20.0]))
def test_appends_wait_for_a_server_that_is_away_for_long(
    world: S3World, writers: list[Writer], seconds: float
) -> None:
    more(writers, "appends before the fault")
    until = time.monotonic() + seconds
    world.store.turn(Weather(gone="refuses"))
    wait_until(lambda: time.monotonic() > until, what="the time to pass")
    world.store.turn(FAIR)
    more(writers, "appends after the fault, without help")
    check(world, writers)
    assert max(writer.longest for writer in writers) < seconds + 15


def check(world: S3World, writers: list[Writer]) -> None:
    """Assert that each acknowledged record is there once, in order, at another node."""
    for number, writer in enumerate(writers):
        acknowledged = writer.finish()
        url = world.cluster.urls[(number + 1) % 3]
        assert records(url, writer.stream.partition("/v1/stream/")[2]) == [*range(acknowledged)]
