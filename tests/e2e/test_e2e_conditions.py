"""Appends on a condition to a real cluster, at all of its nodes at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import pytest
from polling import wait_until
from product import polynya
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import AGAIN, ask, ask_once

from polynya.base.offsets import START, format_token

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
WRITERS = 20
PROFILES = ("replicated", "leased", "diskless")


def append_if(url: str, value: int, token: str) -> int:
    """Append under a condition and return a conclusive status. A node that is not ready applied
    nothing."""

    def look() -> int | None:
        status, body = ask_once("POST", url, b"%d" % value, **{"If-Match": f'"{token}"'})
        if status in AGAIN:
            assert json.loads(body)["error"]["code"] in ("UPGRADE_PENDING", "UNAVAILABLE")
            return None
        return status

    return wait_until(look, what="an append to be judged", seconds=60)


def test_of_twenty_writers_at_three_nodes_one_wins_in_every_profile(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3") as cluster:
        for profile in PROFILES:
            path = f"/v1/stream/swap/{profile}"
            made = ask("PUT", cluster.urls[0] + path, **{"Stream-Profile": profile})
            assert made[0] == 201
            token = START
            for _ in range(2):
                urls = islice(cycle(url + path for url in cluster.urls), WRITERS)
                with ThreadPoolExecutor(WRITERS) as threads:
                    statuses = list(threads.map(append_if, urls, range(WRITERS), [token] * WRITERS))
                assert sorted(statuses) == [204] + [412] * (WRITERS - 1), profile
                found = json.loads(ask("GET", f"{cluster.urls[2]}{path}?offset=-1")[1])
                token = format_token(len(found), 0)
            assert len(found) == 2
            name = f"swap/{profile}"
            server = ("--server", cluster.urls[1])
            refused = polynya("append", name, "7", "--if-match", START, *server)
            assert refused.code == 1 and "PRECONDITION" in refused.err
            done = polynya("append", name, "7", "8", "--if-match", token, "--close", *server)
            assert done.code == 0, done.err
            assert json.loads(ask("GET", f"{cluster.urls[0]}{path}?offset=-1")[1]) == [*found, 7, 8]
