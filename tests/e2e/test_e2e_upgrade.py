"""A rolling upgrade with real processes: old and new nodes work side by side, and the new level
begins with the last of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from product import polynya
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask

from polynya.base.levels import LEVEL

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NEXT = str(LEVEL + 1)


def shown(cluster: DevCluster, by: int = 1) -> tuple[int, list[Any]]:
    view = cluster.view(by)
    return view["level"], [node["level"] for node in view["nodes"]]


def status(cluster: DevCluster) -> str:
    return polynya("cluster", "status", server=cluster.urls[0]).out


def upgrade(cluster: DevCluster, number: int) -> None:
    cluster.kill(number)
    cluster.start(number, RELEASE_LEVEL=NEXT)
    other = number % 3 + 1
    wait_until(
        lambda: shown(cluster, other)[1][number - 1] == LEVEL + 1,
        what=f"node {number} with the new release",
    )
    cluster.wait_until_well(other)


def test_three_nodes_are_upgraded_one_by_one(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--groups", "4") as cluster:
        streams = [f"{url}/v1/stream/upgraded" for url in cluster.urls]
        assert ask("PUT", streams[0])[0] == 201
        wait_until(lambda: shown(cluster) == (LEVEL, [LEVEL] * 3), what="all to be there")
        for number in (3, 2, 1):
            assert ask("POST", streams[number % 3], b"%d" % number)[0] == 204
            if number == 1:
                levels = wait_until(
                    lambda: (now := shown(cluster))[1] == [LEVEL, LEVEL + 1, LEVEL + 1] and now,
                    what="node 1 to know what the others are",
                )
                assert levels[0] == LEVEL, "one node does not know it yet"
            upgrade(cluster, number)
            if number == 3:
                wait_until(
                    lambda: "an upgrade is under way" in status(cluster),
                    what="the upgrade in the status",
                )
        wait_until(lambda: shown(cluster) == (LEVEL + 1, [LEVEL + 1] * 3), what="the new level")
        assert ask("GET", streams[0])[1] == b"[3,2,1]"
        cluster.kill(3)
        log = cluster.node(3) / "node.log"
        before = log.stat().st_size
        cluster.start(3)  # the old release again
        wait_until(
            lambda: b"works at level %d" % (LEVEL + 1) in log.read_bytes()[before:],
            what="the old release to be refused",
        )
        upgrade(cluster, 3)
        assert ask("GET", streams[2])[1] == b"[3,2,1]"
