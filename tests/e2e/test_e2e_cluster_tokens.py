"""Tokens of a cluster with access control: made by one node, known by all, also by one that was
away; and revoked everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from polling import wait_until
from product import polynya
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask_once, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def status(cluster: DevCluster, number: int, token: str) -> int:
    try:
        return ask_once(
            "GET", f"{cluster.urls[number - 1]}/v1/node", Authorization=f"Bearer {token}"
        )[0]
    except OSError:
        return 0


def health(cluster: DevCluster, **variables: str) -> str:
    return polynya("cluster", "health", server=cluster.urls[1], **variables).out


def test_a_token_made_and_revoked_at_one_node_holds_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with dev_cluster(folder, "--cores", "1", "--auth-required") as cluster:
        root = polynya(
            "token", "create", "root", "--allow", "all,admin", "--data", str(folder / "node-1")
        ).out.strip()
        for number in (1, 2, 3):
            wait_until(
                lambda number=number: status(cluster, number, root) == 200,
                what="the token made in a folder",
            )  # type: ignore[misc]
        assert ask_once("GET", f"{cluster.urls[0]}/v1/cluster")[0] == 401
        wait_until(lambda: health(cluster) == "healthy\n", what="health, which anybody may ask for")
        cluster.kill(3)
        wait_until(
            lambda: (
                "node 3 does not answer" in (output := health(cluster, POLYNYA_TOKEN=root))
                and "no leader" not in output
            ),
            what="node 3 to be missed",
        )
        made = run(
            "token",
            "create",
            "shop",
            "--allow",
            "read",
            "--server",
            cluster.urls[1],
            server=cluster.urls[1],
            POLYNYA_TOKEN=root,
        )
        assert made.code == 0, made.err
        shop = made.out.strip()
        wait_until(
            lambda: status(cluster, 1, shop) == status(cluster, 2, shop) == 200,
            what="both to know it",
        )
        cluster.start(3)
        wait_until(
            lambda: status(cluster, 3, shop) == 200,
            what="the node that was away to know it",
            seconds=60,
        )
        assert (
            run(
                "token",
                "revoke",
                "shop",
                "--server",
                cluster.urls[2],
                server=cluster.urls[2],
                POLYNYA_TOKEN=root,
            ).code
            == 0
        )
        for number in (1, 2, 3):
            wait_until(
                lambda number=number: status(cluster, number, shop) == 401, what="it to be refused"
            )  # type: ignore[misc]
            wait_until(
                lambda number=number: status(cluster, number, root) == 200,
                what="the other token to be good",
            )  # type: ignore[misc]
