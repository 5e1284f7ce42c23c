"""Appends to streams of several groups, all or nothing, while a node of a real cluster is of an older release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask, ask_once, names_by_leader, records

from polynya.base.levels import ATOMIC_LEVEL, LEVEL

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
OLDER = str(ATOMIC_LEVEL - 1)


def levels(cluster: DevCluster, by: int) -> list[int]:
    return [cluster.view(by)["level"], *(node["level"] for node in cluster.view(by)["nodes"])]


def start_again(cluster: DevCluster, number: int, **variables: str) -> None:
    cluster.kill(number)
    cluster.start(number, **variables)
    cluster.wait_until_well(number)


def test_nothing_is_appended_until_the_last_node_is_upgraded(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", RELEASE_LEVEL=OLDER) as cluster:
        for number in (1, 2):
            start_again(cluster, number, RELEASE_LEVEL=str(LEVEL))
        for by in (1, 2, 3):
            wait_until(
                lambda by=by: (
                    levels(cluster, by) == [ATOMIC_LEVEL - 1, LEVEL, LEVEL, ATOMIC_LEVEL - 1]
                ),
                what=f"node {by} to know that node 3 is of the older release",
            )
        names = list(names_by_leader(cluster).values())
        assert len(names) == 3, "each node leads the group of one"
        for name in names:
            assert ask("PUT", f"{cluster.urls[0]}/v1/stream/{name}")[0] == 201
        lines = [json.dumps({"stream": name, "records": [name]}) for name in names]
        body = "\n".join(lines).encode()
        for url in cluster.urls:
            status, answer = ask_once("POST", f"{url}/v1/append-all", body)
            assert (status, json.loads(answer)["error"]["code"]) == (503, "UPGRADE_PENDING"), url
        assert [records(cluster.urls[1], name) for name in names] == [[], [], []]

        start_again(cluster, 3, RELEASE_LEVEL=str(LEVEL))
        for url in cluster.urls:
            wait_until(
                lambda url=url: ask_once("POST", f"{url}/v1/append-all", body)[0] == 200,
                what="the new level",
            )
        assert [records(cluster.urls[1], name) for name in names] == [[name] * 3 for name in names]
