"""Real processes: nodes come, groups move to them under writers, nodes go, and everything
acknowledged is there, in order, on every node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from polling import wait_until
from product import Ran, polynya
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import Writer, agreed, ask, go_on, records, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
WAIT_SECONDS = 100
WAIT = ("--wait", "--timeout", f"{WAIT_SECONDS}")


def done(*arguments: str, server: str) -> Ran:
    ran = run("cluster", *arguments, server=server, seconds=WAIT_SECONDS + 60.0)
    assert ran.code == 0, ran.err
    return ran


def refused(*arguments: str, server: str) -> str:
    ran = run("cluster", *arguments, server=server)
    assert ran.code == 1 and "[CLUSTER_REFUSED]" in ran.err, ran.err
    return ran.err


def urls_of(cluster: DevCluster, by: int, numbers: list[int]) -> dict[int, str]:
    """Return the URLs of the cluster's nodes, once node `by` lists `numbers`."""
    view = agreed(
        cluster,
        by,
        f"the nodes {numbers}",
        lambda view: sorted(node["id"] for node in view["nodes"]) == numbers,
    )
    return {node["id"]: node["http"] for node in view["nodes"]}


@pytest.mark.long
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
        assert "node 4 is a member of the cluster" in added.err and "done" in added.err
        agreed(
            cluster,
            2,
            "that all is spread",
            lambda view: (
                not view["rebalancing"] and [n["votes"] > 3 for n in view["nodes"]] == [True] * 4
            ),
        )
        go_on(writers, "appends with a fourth node")
        done("drain", "1", *WAIT, server=two)
        agreed(
            cluster,
            3,
            "that node 1 leads nothing",
            lambda view: all(group["leader"] in (2, 3, 4) for group in view["groups"]),
        )
        done("remove", "1", *WAIT, server=one)  # the node that is asked goes
        wait_until(
            lambda: any(
                "node 1 is no longer a member: it was removed" in line for line in list(cluster.log)
            ),
            what="node 1 to stop",
        )
        go_on(writers, "appends without the first node")
        counts = [writer.finish() for writer in writers]
        urls = urls_of(cluster, 2, [2, 3, 4])
        for name, count in zip(names, counts, strict=False):
            assert [records(url, name) for url in urls.values()] == [list(range(count))] * 3
        for name in names[4:]:
            assert ask("POST", f"{urls[4]}/v1/stream/{name}", b"7")[0] == 204 and records(
                two, name
            ) == [7]
        wait_until(
            lambda: polynya("cluster", "health", server=urls[4]).out == "healthy\n",
            what="node 4 to find the cluster well",
        )
        assert cluster.stop() == 0
    with dev_cluster(folder, "--cores", "1", "--groups", "6") as again:  # on other ports
        assert len(again.urls) == 3
        for name, count in zip(names, counts, strict=False):
            assert [records(url, name) for url in again.urls] == [list(range(count))] * 3
        started = polynya("serve", "--config", str(folder / "node-1" / "polynya.toml"))
        assert started.code == 78 and "node 1 was removed from the cluster" in started.err


def test_five_nodes_with_three_replicas_answer_everything_and_a_lost_disk_is_replaced(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "c"
    with dev_cluster(
        folder, "--nodes", "5", "--replicas", "3", "--cores", "1", "--groups", "6"
    ) as cluster:
        view = cluster.wait_until_well(1)
        assert {len(group["voters"]) for group in view["groups"][1:]} == {3}
        names = [f"spread/{number}" for number in range(12)]
        for number, name in enumerate(names):
            url = cluster.urls[number % 5]
            assert ask("PUT", f"{url}/v1/stream/{name}", b"[0]")[0] == 201
            assert [records(each, name) for each in cluster.urls] == [[0]] * 5
        group = view["groups"][1]
        source, target = (
            group["voters"][0],
            next(number for number in range(1, 6) if number not in group["voters"]),
        )
        assert "has a replica of group 1 already" in refused(
            "move", "1", "--from", f"{source}", "--to", f"{group['voters'][1]}", server=url
        )
        done("move", "1", "--from", f"{source}", "--to", f"{target}", *WAIT, server=url)
        done("transfer", "1", "--to", f"{target}", *WAIT, server=url)
        moved = agreed(
            cluster, 3, "who leads group 1", lambda view: view["groups"][1]["leader"] == target
        )["groups"][1]
        assert moved["first"] == target and source not in moved["voters"]
        cluster.kill(2)
        shutil.copytree(folder / "node-2", tmp_path / "away", ignore=lambda *_: ["run"])
        cluster.wipe(2)
        other = cluster.urls[2]
        agreed(
            cluster,
            3,
            "that node 2 is away",
            lambda view: 2 not in [node["id"] for node in view["nodes"] if node["up"]],
        )
        assert (
            "does not answer"
            in refused("move", "1", "--from", f"{target}", "--to", "2", server=other)
            or 2 in moved["voters"]
        )
        wait_until(
            lambda: "under-replicated" in polynya("cluster", "health", server=other).out,
            what="health to say so",
        )
        replaced = done("replace-disk", "2", "--dev", str(folder), *WAIT, server=other)
        assert "node 6 replaces node 2" in replaced.err
        urls = urls_of(cluster, 3, [1, 3, 4, 5, 6])
        for name in names:
            assert ask("POST", f"{urls[6]}/v1/stream/{name}", b"1")[0] == 204
            assert [records(each, name) for each in urls.values()] == [[0, 1]] * 5
        settings = ("--config", str(folder / "node-2" / "polynya.toml"))
        # it was down while it was removed, and hears so
        started = polynya("serve", *settings, "--data", str(tmp_path / "away"))
        assert (
            started.code == 78
            and "node 2 was removed from the cluster" in started.err
            and "while it was down" in started.err
        )
        started = polynya("serve", *settings)  # on its empty disk, too
        assert started.code == 78 and "number 2 was removed from the cluster" in started.err
        assert cluster.stop() == 0
    assert not [line for line in cluster.logs().splitlines() if "level=critical" in line]
