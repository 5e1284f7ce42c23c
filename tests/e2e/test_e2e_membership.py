"""Real processes: nodes come, groups move to them under writers, nodes go, and everything acknowledged is there, in order, on every node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dev_cluster import DevCluster, dev_cluster
from polling import wait_until
from product import Ran, polynya
from test_e2e_cluster import Writer, ask, go_on

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
WAIT = ("--wait", "--timeout", "60")


def done(*arguments: str, server: str) -> Ran:
    ran = polynya("cluster", *arguments, server=server)
    assert ran.code == 0, ran.err
    return ran


def refused(*arguments: str, server: str) -> str:
    ran = polynya("cluster", *arguments, server=server)
    assert ran.code == 1 and "[CLUSTER_REFUSED]" in ran.err, ran.err
    return ran.err


def urls_of(cluster: DevCluster, by: int) -> dict[int, str]:
    """Those of the nodes that belong to the cluster, as node `by` has it."""
    return {node["id"]: node["http"] for node in cluster.view(by)["nodes"]}


def read(url: str, name: str) -> list[int]:
    status, body = ask("GET", f"{url}/v1/stream/{name}?offset=-1")
    assert status == 200, body
    found: list[int] = json.loads(body)
    return found


def test_three_nodes_become_four_and_the_first_goes_under_writers(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with dev_cluster(folder, "--cores", "1", "--groups", "6") as cluster:
        one, two, three = cluster.urls
        assert "need 3 nodes, and without node 1 there are 2" in refused("remove", "1", server=one)
        names = [f"moved/{number}" for number in range(12)]
        for name in names:
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
        writers = [Writer((two, three)[number % 2], name) for number, name in enumerate(names[:4])]
        for writer in writers:
            writer.start()
        added = done("add", "--dev", str(folder), *WAIT, server=one)
        assert "node 4 belongs to the cluster" in added.err and "done" in added.err
        view = cluster.view(2)
        assert not view["balancing"] and {node["id"]: node["votes"] > 3 for node in view["nodes"]} == dict.fromkeys((1, 2, 3, 4), True)
        go_on(writers, "appends with a fourth node")
        done("drain", "1", *WAIT, server=two)
        assert next(node for node in cluster.view(3)["nodes"] if node["id"] == 1)["leads"] == 0
        done("remove", "1", *WAIT, server=one)  # the node that is asked goes
        wait_until(lambda: any("node 1 is gone: it was removed" in line for line in cluster.said), what="node 1 to stop")
        go_on(writers, "appends without the first node")
        counts = [writer.finish() for writer in writers]
        urls = urls_of(cluster, 2)
        assert sorted(urls) == [2, 3, 4]
        for name, count in zip(names, counts, strict=False):
            assert [read(url, name) for url in urls.values()] == [list(range(count))] * 3
        for name in names[4:]:
            assert ask("POST", f"{urls[4]}/v1/stream/{name}", b"7")[0] == 204 and read(two, name) == [7]
        assert polynya("cluster", "health", server=urls[4]).out == "healthy\n"
        assert cluster.stop() == 0
    with dev_cluster(folder, "--cores", "1", "--groups", "6") as again:  # on other ports
        assert len(again.urls) == 3
        for name, count in zip(names, counts, strict=False):
            assert [read(url, name) for url in again.urls] == [list(range(count))] * 3
        started = polynya("serve", "--config", str(folder / "node-1" / "polynya.toml"))
        assert started.code == 78 and "node 1 was removed from the cluster" in started.err


def test_five_nodes_with_three_replicas_answer_everything_and_a_lost_disk_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with dev_cluster(folder, "--nodes", "5", "--replicas", "3", "--cores", "1", "--groups", "6") as cluster:
        view = cluster.wait_until_well(1)
        assert {len(group["voters"]) for group in view["groups"][1:]} == {3}
        names = [f"spread/{number}" for number in range(12)]
        for number, name in enumerate(names):
            url = cluster.urls[number % 5]
            assert ask("PUT", f"{url}/v1/stream/{name}", b"[0]")[0] == 201
            assert [read(each, name) for each in cluster.urls] == [[0]] * 5
        group = view["groups"][1]
        source, target = group["voters"][0], next(number for number in range(1, 6) if number not in group["voters"])
        assert "has a replica of group 1 already" in refused(
            "move", "1", "--from", f"{source}", "--to", f"{group['voters'][1]}", server=url
        )
        done("move", "1", "--from", f"{source}", "--to", f"{target}", *WAIT, server=url)
        done("transfer", "1", "--to", f"{target}", *WAIT, server=url)
        moved = cluster.view(3)["groups"][1]
        assert moved["leader"] == moved["first"] == target and source not in moved["voters"]
        cluster.kill(2)
        cluster.wipe(2)
        other = cluster.urls[2]
        wait_until(lambda: not _there(cluster, 3, 2), what="node 2 to be missed")
        assert "does not answer" in refused("move", "1", "--from", f"{target}", "--to", "2", server=other) or 2 in moved["voters"]
        assert "under-replicated" in polynya("cluster", "health", server=other).out
        replaced = done("replace-disk", "2", "--dev", str(folder), *WAIT, server=other)
        assert "node 6 takes over from node 2" in replaced.err
        urls = urls_of(cluster, 3)
        assert sorted(urls) == [1, 3, 4, 5, 6]
        for name in names:
            assert ask("POST", f"{urls[6]}/v1/stream/{name}", b"1")[0] == 204
            assert [read(each, name) for each in urls.values()] == [[0, 1]] * 5
        assert cluster.stop() == 0
    assert not [line for line in cluster.logs().splitlines() if "level=critical" in line]


def _there(cluster: DevCluster, by: int, node: int) -> bool:
    return any(each["id"] == node and each["there"] for each in cluster.view(by)["nodes"])
