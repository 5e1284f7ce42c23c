"""Real processes: a node whose folder was put back from an older copy takes no part, says so, and
comes back without its data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from polling import wait_until
from product import polynya
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import agreed, ask, records

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.long
def test_an_older_copy_of_a_node_s_folder_is_kept_out_and_named(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "2", "--groups", "4") as cluster:
        one, two, three = cluster.urls
        names = [f"kept/{number}" for number in range(8)]

        def append(url: str, number: int) -> None:
            for name in names:
                assert ask("POST", f"{url}/v1/stream/{name}", b"%d" % number)[0] == 204

        for name in names:
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
        append(two, 0)
        cluster.kill(3)
        copy = tmp_path / "copy"
        shutil.copytree(cluster.node(3), copy, ignore=shutil.ignore_patterns("run"))
        cluster.start(3)
        cluster.wait_until_well(3)
        append(three, 1)
        cluster.wait_until_well(1)
        cluster.kill(3)
        for core in (0, 1):
            shutil.rmtree(cluster.node(3) / f"core-{core}")
            shutil.copytree(copy / f"core-{core}", cluster.node(3) / f"core-{core}")
        cluster.start(3)
        log = cluster.node(3) / "node.log"
        wait_until(lambda: "is a stale copy" in log.read_text(), what="node 3 to hear what it is")
        wait_until(
            lambda: "its data is damaged, or a stale copy" in log.read_text(), what="node 3 to end"
        )
        append(one, 2)
        agreed(
            cluster,
            1,
            "why it is away",
            lambda view: any(
                "node 3 returned with a stale copy of its data" in note for note in view["notes"]
            ),
        )
        again = polynya("serve", "--config", str(cluster.node(3) / "polynya.toml"))
        assert again.code == 65 and "is a stale copy" in again.err
        for core in (0, 1):
            (cluster.node(3) / f"core-{core}").rename(tmp_path / f"core-{core}")
        cluster.start(3)
        cluster.wait_until_well(3)
        append(three, 3)
        for url in cluster.urls:
            assert [records(url, name) for name in names] == [[0, 1, 2, 3]] * len(names)
        assert "stale copy" not in polynya("cluster", "health", server=one).out
