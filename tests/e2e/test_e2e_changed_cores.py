"""Changes of the number of cores between starts, of a single node and of cluster members: no loss,
no duplicates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from e2e_world import JSON, World
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import Writer, ask, go_on

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
NAMES = [f"changed/{number}" for number in range(12)]


def test_a_node_by_itself_is_started_with_more_and_fewer_cores_and_killed_while_it_changes(
    world: World,
) -> None:
    for written, cores in enumerate((2, 3, 1, 4, 2), 1):
        world.start("--cores", str(cores))
        assert json.loads(world.ask("GET", "/v1/node").body)["cores"] == cores
        for name in NAMES:
            if written == 1:
                assert world.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
            assert world.ask("POST", f"/v1/stream/{name}", b"%d" % cores, **JSON).status == 204
        for name in NAMES:
            assert len(json.loads(world.ask("GET", f"/v1/stream/{name}?offset=-1").body)) == written
        world.kill_all()


def with_cores(cluster: DevCluster, number: int, cores: int) -> None:
    path = cluster.node(number) / "polynya.toml"
    path.write_text(
        re.sub(r"^cores = \d+$", f"cores = {cores}", path.read_text(), flags=re.MULTILINE)
    )


def cores_of(cluster: DevCluster, number: int) -> int:
    """Return the number of cores of a healthy node."""
    view = cluster.wait_until_well(number)
    cores: int = next(node["cores"] for node in view["nodes"] if node["id"] == number)
    return cores


@pytest.mark.long
def test_members_of_a_cluster_change_one_after_the_other_while_it_is_written(
    tmp_path: Path,
) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "2") as cluster:
        one, two, three = cluster.urls
        for name in NAMES:
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
        writers = [
            Writer(url, name) for url, name in zip((one, two, three, one), NAMES, strict=False)
        ]
        for writer in (writers[0], writers[3]):
            writer.start()
        for number, cores in ((2, 3), (3, 1), (2, 1)):
            cluster.kill(number)
            with_cores(cluster, number, cores)
            cluster.start(number)
            if cores == 3:  # it is killed once more, wherever it is
                folder = cluster.node(number)
                wait_until(
                    lambda folder=folder: (
                        (folder / "cores.new").exists()
                        or json.loads((folder / "node.json").read_text())["cores"] == 3
                    ),  # type: ignore[misc]
                    what="the change to begin",
                )
                cluster._started[-1].kill()
                cluster._started[-1].wait(60)
                cluster.start(number)
            wait_until(
                lambda: cores_of(cluster, number) == cores,  # noqa: B023
                what=f"node {number} with {cores} cores",
            )
            go_on([writers[0], writers[3]], f"writes beside a node of {cores} cores")
        counts = [writer.finish() for writer in (writers[0], writers[3])]
        for url in cluster.urls:
            for writer, count in zip((writers[0], writers[3]), counts, strict=True):
                name = writer.stream.partition("/v1/stream/")[2]
                assert json.loads(ask("GET", f"{url}/v1/stream/{name}?offset=-1")[1]) == list(
                    range(count)
                )
        for url in cluster.urls:  # any node answers for every group, and any leads
            for name in NAMES[4:]:
                wait_until(
                    lambda url=url, name=name: (
                        ask("POST", f"{url}/v1/stream/{name}", b"1")[0] == 204
                    ),
                    what="an append",
                )  # type: ignore[misc]
