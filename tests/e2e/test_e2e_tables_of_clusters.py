"""Tables on a cluster of real processes: every node knows a table, and one node shows its lag."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from polling import wait_until
from product import polynya
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import ask

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_a_table_is_made_right_after_the_start_and_counts_what_ends(tmp_path: Path) -> None:
    plain = {"Content-Type": "text/plain"}
    with dev_cluster(tmp_path / "c", "--cores", "1", "--groups", "4") as cluster:
        made = polynya("table", "create", "t", "--prefix", "t", "--hold", server=cluster.urls[0])
        assert made.code == 0 and "warning: no stream name starts with 't' yet" in made.err, made
        for number, url in enumerate(cluster.urls):
            name = f"{url}/v1/stream/t/{number}"
            for method, body, status in (
                ("PUT", None, 201),
                ("POST", b"x", 204),
                ("DELETE", None, 204),
            ):
                assert ask(method, name, body, **plain)[0] == status
        for url in cluster.urls:
            (table,) = httpx.get(f"{url}/v1/tables", timeout=30).json()["tables"]
            assert (table["prefix"], table["hold"], table["records_ended"]) == ("t", True, 3)
        seen = [
            json.loads(polynya("table", "describe", "t", "--json", server=url).out)["records_ended"]
            for url in cluster.urls
        ]
        assert seen == [3, 3, 3]

        def reported() -> list[str]:
            admins = [
                httpx.get(f"{url}/v1/node", timeout=30).json()["ports"]["admin"]
                for url in cluster.urls
            ]
            pages = [
                httpx.get(f"http://127.0.0.1:{admin}/metrics", timeout=30).text for admin in admins
            ]
            return [page for page in pages if 'polynya_table_records_ended{table="t"} 3' in page]

        assert len(wait_until(reported, what="the metrics of the table", seconds=60)) == 1
