"""A leased stream on three real nodes: segments roll over under writers at all of them, and a
crashed writer is replaced. `bench.segments` measures both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import Writer, ask, records

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
# a loaded machine takes longer than the 20 ms and 2 s of one that is not
STALL_SECONDS, FAILOVER_SECONDS = 5.0, 15.0
LEASED = {"Stream-Profile": "leased", "Stream-Segment-Records": "15"}


def segments(cluster: DevCluster, by: int) -> dict[str, Any]:
    status, body = ask("GET", f"{cluster.urls[by]}/v1/segments/hot/a")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def test_segments_roll_over_and_a_dead_writer_is_replaced(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        assert ask("PUT", f"{cluster.urls[0]}/v1/stream/hot/a", **LEASED)[0] == 201
        writers = [Writer(url, "hot/a", f"w{at}") for at, url in enumerate(cluster.urls)]
        for writer in writers:
            writer.start()
        wait_until(lambda: segments(cluster, 1)["rollovers"] >= 8, what="eight rollovers")
        before = segments(cluster, 2)
        assert {each["writer"] for each in before["segments"]} == {1, 2, 3}
        assert max(writer.longest for writer in writers) < STALL_SECONDS
        dead = segments(cluster, 0)["writer"]
        others = [writer for number, writer in enumerate(writers, 1) if number != dead]
        cluster.kill(dead)
        known = [writer.acknowledged for writer in others]
        wait_until(
            lambda: any(w.acknowledged > k + 1 for w, k in zip(others, known, strict=True)),
            what="an append after the death of the writer",
            seconds=FAILOVER_SECONDS,
        )
        wait_until(
            lambda: segments(cluster, dead % 3)["epoch"] > before["epoch"] + 3, what="rollovers"
        )
        cluster.start(dead)
        cluster.wait_until_well(dead)
        sent = sum(writer.finish() for writer in writers)
        for url in cluster.urls:
            found = records(url, "hot/a")
            assert len(found) == sent
        assert cluster.stop() == 0
