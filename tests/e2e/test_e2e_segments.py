"""Leased streams on a real node, by HTTP, the command line, the text protocol and a Kafka topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from polling import wait_until
from product import RunningNode, polynya, running_node
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask
from worlds.text_client import TextClient, text_address

from polynya.client import AsyncClient, Client, Leased, StreamExists

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
FLAGS = (
    "--text-listen",
    "on",
    "--text-profile",
    "leased",
    "--segments-records",
    "4",
    "--cores",
    "2",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data", *FLAGS) as node:
        yield node


def put(node: RunningNode, name: str, **headers: str) -> int:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    named["Content-Type"] = "application/json"
    request = Request(f"{node.url}/v1/stream/{name}", method="PUT", headers=named)
    with urlopen(request) as response:
        assert isinstance(response.status, int)
        return response.status


def append(node: RunningNode, name: str, number: int) -> None:
    headers = {"Content-Type": "application/json"}
    request = Request(f"{node.url}/v1/stream/{name}", str(number).encode(), headers)
    urlopen(request).close()


def segments(node: RunningNode, name: str) -> dict[str, Any]:
    with urlopen(f"{node.url}/v1/segments/{name}") as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_segments_roll_over_and_are_seen(node: RunningNode) -> None:
    leased = {"Stream_Profile": "leased", "Stream_Segment_Records": "3"}
    assert put(node, "hot/a", **leased) == 201
    assert put(node, "hot/a", **leased) == 200
    assert put(node, "hot/a") == 200
    for number in range(10):
        append(node, "hot/a", number)
    found = segments(node, "hot/a")
    assert (found["epoch"], found["writer"], found["rollovers"]) == (4, 1, 3)
    assert [(each["epoch"], each["records"], each["sealed"]) for each in found["segments"]] == [
        (1, 3, True), (2, 3, True), (3, 3, True), (4, 1, False)
    ]  # fmt: skip
    with urlopen(Request(f"{node.url}/v1/stream/hot/a", method="HEAD")) as response:
        assert response.headers["Stream-Profile"] == "leased"
        assert response.headers["Stream-Segment"] == "4"
        assert response.headers["Stream-Segment-Writer"] == "1"
    shown = polynya("info", "hot/a", server=node.url).out
    assert "profile          leased" in shown and "segment 3        sealed, node 1" in shown
    info = json.loads(polynya("info", "hot/a", "--json", server=node.url).out)
    assert [each["epoch"] for each in info["segments"]] == [1, 2, 3, 4]
    with urlopen(f"{node.url}/v1/stream/hot/a?offset=-1") as response:
        assert json.load(response) == list(range(10))


def test_a_segment_is_closed_on_request(node: RunningNode) -> None:
    def roll(name: str, query: str = "") -> dict[str, Any]:
        with urlopen(Request(f"{node.url}/v1/segments/{name}{query}", b"")) as response:
            found: dict[str, Any] = json.load(response)
        return found

    assert put(node, "hot/r", Stream_Profile="leased") == 201
    assert roll("hot/r")["rolled"] is False, "it has no records"
    append(node, "hot/r", 1)
    found = roll("hot/r", "?epoch=1")
    assert (found["rolled"], found["epoch"]) == (True, 2)
    append(node, "hot/r", 2)
    again = roll("hot/r", "?epoch=1")
    assert (again["rolled"], again["epoch"]) == (False, 2)
    result = polynya("rollover", "hot/r", server=node.url)
    assert "closed a segment; segment 3 is open, its writer is node 1" in result.err
    assert (
        json.loads(polynya("rollover", "hot/r", "--json", server=node.url).out)["rolled"] is False
    )
    assert [each["records"] for each in segments(node, "hot/r")["segments"]] == [1, 1, 0]
    assert put(node, "hot/even") == 201
    for name, query, status in (("hot/even", "", 404), ("hot/r", "?epoch=two", 400)):
        with pytest.raises(HTTPError) as refused:
            roll(name, query)
        assert refused.value.code == status


def test_the_clients_create_leased_streams(node: RunningNode) -> None:
    async def by_coroutine() -> str | None:
        async with AsyncClient(node.url) as client:
            stream = client.stream("hot/aio")
            await stream.create(profile=Leased(bytes=4096))
            return (await stream.head()).profile

    with Client(node.url) as client:
        stream = client.stream("hot/blocking")
        stream.create(profile=Leased(records=2))
        assert not stream.create(profile="leased").created
        for number in range(5):
            stream.append(number)
        assert [record.value for record in stream.read()] == list(range(5))
        assert stream.head().profile == "leased"
        with pytest.raises(StreamExists, match="3"):
            stream.create(profile=Leased(records=3))
        with pytest.raises(ValueError, match="replicated or leased"):
            client.stream("hot/none").create(profile="lesed")  # type: ignore[arg-type]
    assert segments(node, "hot/blocking")["rollovers"] == 2
    assert asyncio.run(by_coroutine()) == "leased"
    assert segments(node, "hot/aio")["segment_bytes"] == 4096


def test_other_profiles_are_refused_with_what_is_there(node: RunningNode) -> None:
    assert put(node, "hot/b", Stream_Profile="leased") == 201
    assert put(node, "hot/plain", Stream_Profile="replicated") == 201
    for name, headers, status, why in (
        (
            "hot/b",
            {"Stream_Profile": "leased", "Stream_Segment_Records": "9"},
            409,
            "node's setting",
        ),
        ("hot/plain", {"Stream_Profile": "leased"}, 409, "replicated"),
        ("hot/c", {"Stream_Profile": "mirrored"}, 400, "replicated or leased"),
        ("hot/c", {"Stream_Segment_Records": "9"}, 400, "need Stream-Profile"),
        ("hot/c", {"Stream_Profile": "leased", "Stream_Segment_Bytes": "0"}, 400, "from 1 to"),
    ):
        with pytest.raises(HTTPError) as refused:
            put(node, name, **headers)
        assert refused.value.code == status
        assert why in refused.value.read().decode()
    for missing in ("hot/plain", "hot/none"):
        with pytest.raises(HTTPError, match="404"):
            segments(node, missing)


def test_a_topic_of_the_text_protocol_shows_its_segments(node: RunningNode) -> None:
    with TextClient(text_address(node)) as client:
        assert client.ask("REGISTER logs") == "OK"
        for number in range(9):
            assert client.ask(f"PUT logs {number}") == "OK"
        assert json.loads(client.ask("STATE logs")) == {
            "current_segment": 3,
            "leader_node": 1,
            "last_sealed_entry_offset": 8,
            "sealed_segments": {"1": 4, "2": 4},
            "segment_leaders": {"1": 1, "2": 1, "3": 1},
        }
        assert [client.ask("GET logs") for _ in range(10)] == [
            *(f"OK {number}" for number in range(9)), "EMPTY"
        ]  # fmt: skip


def test_partitions_of_a_leased_topic_have_segments(node: RunningNode) -> None:
    def run(*arguments: str) -> int:
        return polynya("topic", *arguments, server=node.url).code

    assert (
        run("create", "orders", "--config", "profile=leased", "--config", "segment.bytes=1000") == 0
    )
    found = segments(node, "kafka/orders/0")
    assert (found["epoch"], found["segment_bytes"], found["segment_records"]) == (1, 1000, None)
    assert run("alter", "orders", "--config", "profile=replicated") != 0
    assert run("create", "plain") == 0
    with pytest.raises(HTTPError, match="404"):
        segments(node, "kafka/plain/0")


def test_segments_survive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(data, *FLAGS) as node:
        assert put(node, "hot/a", Stream_Profile="leased") == 201
        for number in range(6):
            append(node, "hot/a", number)
        before = segments(node, "hot/a")
    with running_node(data, *FLAGS) as node:
        assert segments(node, "hot/a") == before
        for number in range(4):
            append(node, "hot/a", number)
        assert segments(node, "hot/a")["epoch"] == 3


def leaders(cluster: DevCluster) -> list[int]:
    """Count the groups that each node leads, and sort the counts."""
    found = [group["leader"] for group in cluster.view(1)["groups"]]
    return sorted(found.count(node) for node in (1, 2, 3))


@pytest.mark.timeout(300)
def test_leaders_are_spread_again_after_a_restart_with_leased_streams(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--groups", "8") as cluster:
        names = [f"{cluster.urls[0]}/v1/stream/leased/{number}" for number in range(24)]
        wait_until(lambda: leaders(cluster) == [3, 3, 3], what="the leaders to be spread")
        for name in names:
            assert ask("PUT", name, Stream_Profile="leased")[0] == 201

        def append_to_all() -> None:
            for name in names:
                assert ask("POST", name, b"1")[0] == 204

        append_to_all()
        cluster.stop_node(2)
        append_to_all()  # the new leaders open segments
        assert leaders(cluster)[0] == 0
        cluster.start(2)
        wait_until(lambda: leaders(cluster) == [3, 3, 3], what="the leaders to be spread again")
