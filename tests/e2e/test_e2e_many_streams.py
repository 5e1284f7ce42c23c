"""Many streams on one connection over real processes: a command at two cores, and a reader at a
node that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from product import polynya, running_node
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import Writer, ask, go_on, names_by_leader

from polynya.client import START, Client

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_a_command_follows_a_pattern_over_both_cores(tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--cores", "2") as node:
        names = [f"runs/{number}" for number in range(8)]
        for name in (*names, "walks/0"):
            assert ask("PUT", f"{node.url}/v1/stream/{name}", f'"{name}"'.encode())[0] == 201
        ran = polynya("tail", "runs/*", "--offset", "start", "--limit", "8", server=node.url)
        assert ran.code == 0, ran
        assert sorted(ran.out.splitlines()) == [f'{name}\t"{name}"' for name in names]
        given = ("--offset", "start", "--limit", "2", "--json")
        ran = polynya("tail", "runs/1", "walks/0", *given, server=node.url)
        lines = {line["stream"]: line for line in map(json.loads, ran.out.splitlines())}
        assert lines["runs/1"]["records"] == ["runs/1"] and lines["walks/0"]["up_to_date"]
        ran = polynya("tail", "runs/*", "-n", "3", server=node.url)
        assert ran.code == 2 and "are for one stream" in ran.err


def test_a_reader_of_a_pattern_outlives_its_node_and_misses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        names = [*names_by_leader(cluster).values()]
        for name in names:
            assert ask("PUT", f"{cluster.urls[1]}/v1/stream/{name}")[0] == 201
        writers = [Writer(cluster.urls[1], name) for name in names]
        for writer in writers:
            writer.start()
        got: dict[str, list[int]] = {name: [] for name in (*names, "by-leader/late")}
        with (
            Client(cluster.urls) as client,
            client.tail_many("by-leader/*", offset=START) as reader,
        ):

            def read_until(name: str, count: int) -> None:
                while len(got[name]) < count:
                    record = next(reader)
                    got[record.stream].append(record.value)

            for name in names:
                read_until(name, 20)
            cluster.kill(1)
            go_on(writers, "appends without node 1")
            assert ask("PUT", f"{cluster.urls[2]}/v1/stream/by-leader/late", b"0")[0] == 201
            counts = [writer.finish() for writer in writers]
            for name, count in zip((*names, "by-leader/late"), (*counts, 1), strict=True):
                read_until(name, count)
        assert got == {
            **{name: [*range(count)] for name, count in zip(names, counts, strict=True)},
            "by-leader/late": [0],
        }
