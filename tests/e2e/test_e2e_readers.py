"""A read replica in real processes: it serves reads locally, its absence has no effect, it returns
with an empty disk, and it is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import Tail, Writer, agreed, ask, ask_once, go_on, records, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
READER = 4
LOCAL = "?offset=-1&consistency=local"


def there(cluster: DevCluster) -> bool:
    """Report whether the first node sees the replica as up."""
    return next(bool(node["up"]) for node in cluster.view(1)["nodes"] if node["id"] == READER)


def local(url: str, name: str) -> bytes:
    status, body = ask_once("GET", f"{url}/v1/stream/{name}{LOCAL}")
    assert status == 200, body
    return body


def test_a_read_replica_answers_and_nobody_counts_on_it(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--readers", "1", "--cores", "1", "--groups", "4") as cluster:
        one, far = cluster.urls[0], cluster.urls[READER - 1]
        view = agreed(cluster, 1, "all replicas", lambda view: view["nodes"][3]["replicas"] == 5)
        assert [node["role"] for node in view["nodes"]] == ["voter"] * 3 + ["reader"]
        assert all(
            group["voters"] == [1, 2, 3] and group["readers"] == [READER]
            for group in view["groups"]
        )
        names = [f"far/{number}" for number in range(6)]
        for name in names:
            assert ask("PUT", f"{far}/v1/stream/{name}")[0] == 201, (
                "what is written to it goes to the others"
            )
        tail, writers = (
            Tail(far, names[0]),
            [Writer((one, far)[number % 2], name) for number, name in enumerate(names[:4])],
        )
        for thread in (tail, *writers):
            thread.start()
        go_on(writers, "appends with a read replica")
        known = writers[1].acknowledged
        assert len(records(far, names[1])) >= known, "linearizable, on the read replica"
        assert local(far, names[5]) == b"[]"

        cluster.kill(READER)
        wait_until(lambda: not there(cluster), what="the read replica to be missed")
        near = [writer for writer in writers if writer.stream.startswith(one)]
        go_on(near, "appends without the read replica")
        health = wait_until(
            lambda: ran if not (ran := run("cluster", "health", server=one)).code else None,
            what="health without the read replica",
        )
        assert health.out == "healthy\n" and "note: read replica 4 does not answer" in health.err
        refused = run("cluster", "replace-disk", f"{READER}", server=one)
        assert (
            refused.code == 1
            and "node 4 is a read replica: start it on an empty disk" in refused.err
        )

        cluster.wipe(READER)
        cluster.start(READER)
        wait_until(
            lambda: there(cluster) and cluster.view(1)["nodes"][3]["replicas"] == 5,
            what="the read replica to have all again",
        )
        go_on(writers, "appends with the read replica again")
        counts = [writer.finish() for writer in writers]
        for name, count in zip(names, counts, strict=False):
            assert records(far, name) == list(range(count))
            wait_until(
                lambda name=name, count=count: local(far, name).count(b",") == count - 1,
                what="the local prefix to be whole",
            )
        wait_until(
            lambda: tail.got == list(range(counts[0])),
            what="the tail on the read replica to have all",
        )
        tail.stopping.set()
        wait_until(
            lambda: b'polynya_reader_lag_entries{node="4"} 0' in ask("GET", f"{one}/metrics")[1],
            what="the read replica to be seen up to date",
        )

        moved = run("cluster", "remove", f"{READER}", "--wait", server=one)
        assert moved.code == 0, moved.err
        wait_until(
            lambda: any(
                "node 4 is no longer a member: it was removed" in line for line in list(cluster.log)
            ),
            what="the read replica to stop",
        )
        view = agreed(cluster, 1, "that all is well", lambda view: not view["problems"])
        assert len(view["nodes"]) == 3 and not any(group["readers"] for group in view["groups"])
        assert ask("POST", f"{one}/v1/stream/{names[0]}", b"-1")[0] == 204
        assert cluster.stop() == 0
    assert not [line for line in cluster.logs().splitlines() if "level=critical" in line]
