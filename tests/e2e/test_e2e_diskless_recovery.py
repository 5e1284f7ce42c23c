"""All disks of a node are lost: its diskless streams and topics come back from the object store, and
their producers go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

import pytest
from e2e_world import World
from free_ports import ports_in_a_row
from polling import wait_until
from product import polynya

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
NAME = "d/a"
INTERVAL = 1.0  # of the copies
SETTLED_SECONDS = 3 * INTERVAL


def ask(url: str, method: str, body: bytes | None = None, **headers: str) -> Any:
    named = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    with urlopen(Request(f"{url}/v1/stream/{NAME}", body, named, method=method)) as response:
        return response.status, dict(response.headers)


def append(url: str, sequence: int) -> tuple[int, dict[str, str]]:
    """Append a record as the idempotent producer of this stream."""
    named = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": str(sequence)}
    found: tuple[int, dict[str, str]] = ask(url, "POST", json.dumps(sequence).encode(), **named)
    return found


def records(url: str) -> list[int]:
    """Read all records, page by page: one ends where numbers are skipped."""
    found: list[int] = []
    offset = "-1"
    for _ in range(9):
        with urlopen(f"{url}/v1/stream/{NAME}?offset={offset}") as response:
            found += json.load(response)
            offset = response.headers["Stream-Next-Offset"]
            if response.headers["Stream-Up-To-Date"] == "true":
                return found
    raise AssertionError(f"no end after {found}")


def stored(world: World) -> int:
    """Count the copies and deltas that the node has stored."""
    with urlopen(f"{world.admin}/metrics") as response:
        lines = response.read().decode().splitlines()
    names = ("polynya_state_copies_total", "polynya_state_copy_deltas_total")
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(names))


def wait_until_stored(world: World) -> None:
    """Wait until an idle node has no more copies to store."""
    count, since = stored(world), monotonic()

    def look() -> bool:
        nonlocal count, since
        if stored(world) != count:
            count, since = stored(world), monotonic()
        return monotonic() - since > SETTLED_SECONDS

    wait_until(look, what="the commits to be in the store", seconds=60)


class Clicks:
    """A diskless topic, its idempotent producer, and the producer's acknowledgements."""

    def __init__(self, address: str) -> None:
        from confluent_kafka import Producer

        self.address = address
        self.offsets: list[int] = []
        self._faults: list[Any] = []
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "acks": "all"}
        )

    def produce(self, begin: int, end: int) -> None:
        def delivered(fault: Any, message: Any) -> None:
            self._faults += [fault] if fault else []
            self.offsets.append(message.offset())

        for number in range(begin, end):
            self._producer.produce("clicks", b"%d" % number, partition=0, on_delivery=delivered)
        assert (self._producer.flush(60), self._faults) == (0, [])

    def read(self, count: int) -> list[int]:
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer({"bootstrap.servers": self.address, "group.id": "g"})
        reader.assign([TopicPartition("clicks", 0, 0)])
        found: list[int] = []
        wait_seconds = monotonic() + 60
        while len(found) < count and monotonic() < wait_seconds:
            message = reader.poll(0.1)
            if message is not None and not message.error():
                found.append(int(message.value()))
        reader.close()
        return found


@pytest.fixture
def kafka() -> Iterator[str]:
    """Yield a node's address for Kafka clients; the ports of its two cores are held, too."""
    with ports_in_a_row(2) as port:
        yield f"127.0.0.1:{port}"


def test_diskless_streams_come_back_from_the_store_alone(
    world: World, tmp_path: Path, kafka: str
) -> None:
    settings = {
        "POLYNYA_COLD_ROOT": str(tmp_path / "objects"),
        "POLYNYA_KAFKA_LISTEN": kafka,
        "POLYNYA_DISKLESS_COPY_INTERVAL": f"{INTERVAL:g}s",
    }
    world.start("--cores", "2", **settings)
    assert ask(world.url, "PUT", Stream_Profile="diskless")[0] == 201
    made = polynya(
        "topic", "create", "clicks", "--config", "profile=diskless", server=world.url
    )  # fmt: skip
    assert made.code == 0, made.err
    clicks = Clicks(kafka)
    for number in range(6):
        append(world.url, number)
    clicks.produce(0, 100)
    wait_until_stored(world)
    append(world.url, 6)  # may be lost, for nothing waits
    world.kill_all()
    shutil.rmtree(world.data)
    ran = polynya(
        "restore", "--from-store", "--take-over", "--data", str(world.data), "--json", **settings
    )
    assert ran.code == 0, ran
    world.start(**settings)
    kept = records(world.url)
    assert kept in ([*range(6)], [*range(7)]), "each once and in order"
    assert ask(world.url, "HEAD")[1]["Stream-Profile"] == "diskless"
    assert append(world.url, 5)[1]["Stream-Record-Start"] == "5", "a repeat"
    for number in (6, 7):
        append(world.url, number)
    assert records(world.url) == [*range(8)]
    assert clicks.read(100) == [*range(100)]
    clicks.produce(100, 150)
    assert clicks.read(150) == [*range(150)]
    assert clicks.offsets[:100] == [*range(100)] and clicks.offsets[100] > 1 << 40, "none twice"
    verified = polynya("store", "verify", server=world.url)
    assert verified.code == 0, verified
