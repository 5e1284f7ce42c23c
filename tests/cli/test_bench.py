"""`polynya bench`: its figures add up, its records are checked, and a wrong record is noticed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from free_ports import refusing_url
from long_tests import long
from polling import wait_until
from product import RunningNode, environment, polynya, running_node

from polynya.cli.streams.bench import (
    RECORD_BYTES_MIN,
    BenchLoad,
    BenchRun,
    Follower,
    Latencies,
    Mismatch,
    Stop,
)
from polynya.client import AsyncClient

LOAD = BenchLoad(size=100, seconds=0.2, batch_records=10, in_flight=2)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.mark.process
def test_appends_are_counted_and_read_again(node: RunningNode) -> None:
    ran = polynya(
        "bench",
        "append",
        "--streams",
        "2",
        "--seconds",
        "300ms",
        "--size",
        "100",
        "--json",
        server=node.url,
    )
    figures = json.loads(ran.out)
    assert (
        ran.code == 0
        and figures["records"] == figures["verified"] > 0
        and figures["bytes"] == 100 * figures["records"]
    )
    assert (
        figures["seconds"] >= 0.3
        and 0 < figures["batch_ms_p50"] <= figures["batch_ms_p99"] <= figures["batch_ms_max"]
    )
    assert polynya("ls", "bench/", server=node.url).out == "", "its streams are gone"


@pytest.mark.process
@pytest.mark.parametrize("what", [("append", "--streams", "2"), ("tail", "--readers", "2")])
def test_control_c_ends_the_writing_and_leaves_the_figures(
    node: RunningNode, what: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "polynya", "bench", *what, "--seconds", "10min", "--json"]
    with subprocess.Popen(
        command,
        env=environment(POLYNYA_SERVER=node.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:

        def has_begun() -> bool:
            listed = httpx.get(
                f"{node.url}/v1/streams", params={"prefix": "bench/"}, timeout=60
            ).json()["streams"]
            return any(not row["next_offset"].startswith("0000000000000000_") for row in listed)

        wait_until(has_begun, what="records to be written")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    figures = json.loads(out)
    assert process.returncode == 130 and b"interrupted" in err
    per_reader = 2 if what[0] == "tail" else 1
    assert figures["records"] * per_reader == figures["verified"] > 0 and figures["seconds"] < 600
    assert polynya("ls", "bench/", server=node.url).out == "", "its streams are gone"


@pytest.mark.process
def test_a_tail_counts_for_every_reader(node: RunningNode) -> None:
    ran = polynya(
        "bench",
        "tail",
        "--rate",
        "100",
        "--seconds",
        "300ms",
        "--readers",
        "3",
        "--keep",
        server=node.url,
    )
    figures = dict(line.rsplit("  ", 1) for line in ran.out.splitlines())
    figures = {name.strip(): value.strip() for name, value in figures.items()}
    assert ran.code == 0 and (figures["records"], figures["verified"], figures["negative"]) == (
        "30",
        "90",
        "0",
    )
    (kept,) = polynya("ls", "bench/", server=node.url).out.splitlines()
    assert len(polynya("read", kept, server=node.url).out.splitlines()) == 30


@pytest.mark.process
def test_a_node_that_is_not_there_is_said() -> None:
    with refusing_url() as url:
        ran = polynya("bench", "append", server=url)
    assert ran.code == 3 and "is unreachable" in ran.err


@pytest.mark.process
@pytest.mark.parametrize("damage", ["twice", *long(["lost", "other"])])
def test_what_is_not_what_was_written_is_noticed(node: RunningNode, damage: str) -> None:
    async def story() -> None:
        async with AsyncClient(node.url) as client:
            stream = client.stream(f"wrong/{damage}")
            await stream.create()
            records = [LOAD.record(number, 7) for number in range(3)]
            if damage == "twice":
                records.insert(1, records[1])
            elif damage == "other":
                records[1]["f"] = "y"
            await stream.append(*(records[:2] if damage == "lost" else records), close=True)
            run = BenchRun(stream, Stop())
            run.written = 3
            with pytest.raises(Mismatch):
                await run.verify(LOAD)
            if damage != "lost":
                with pytest.raises(Mismatch):
                    await Follower(stream).follow(LOAD)

    asyncio.run(story())


def test_records_have_the_size_that_was_asked_for() -> None:
    for size in (RECORD_BYTES_MIN, 100, 1000):
        load = BenchLoad(size=size, seconds=1, batch_records=1, in_flight=1)
        written = json.dumps(load.record(123, 1_700_000_000_000_000_000), separators=(",", ":"))
        assert len(written) == size or size == RECORD_BYTES_MIN


def test_latencies_are_thinned_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.cli.streams.bench.SAMPLES_MAX", 100)
    latencies = Latencies()
    for ms in range(1000):
        latencies.add(float(ms))
    assert 10 <= len(latencies.kept) < 100
    gaps = {
        later - earlier for earlier, later in zip(latencies.kept, latencies.kept[1:], strict=False)
    }
    assert max(gaps) <= 4 * min(gaps)
