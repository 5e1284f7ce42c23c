"""Appends to streams of several groups at a real cluster, all or nothing, while a node is killed."""

from __future__ import annotations

import json
import threading
from http.client import HTTPException
from pathlib import Path

import pytest
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import AGAIN, ask, ask_once, names_by_leader, records

from polynya.base.offsets import format_token
from polynya.client import Client, ConditionFailed, StreamAppend

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
WRITERS = 3
REQUESTS = 12  # of each writer
NOWHERE = format_token(1 << 40, 0)  # no stream ends there


class Writer(threading.Thread):
    """A client with a producer, which sends each request to one node after the other until it is
    answered. Every third one is refused."""

    def __init__(self, cluster: DevCluster, names: list[str], number: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.names, self.number = cluster, names, number
        self.done = 0
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            sequence = 0
            for count in range(REQUESTS):
                refused = count % 3 == 2
                lines = [{"stream": name, "records": [[self.number, count]]} for name in self.names]
                lines[0] |= {"producer": [f"w{self.number}", 0, sequence]}
                if refused:
                    lines[-1] |= {"if_match": NOWHERE}
                status, body = self._answer("\n".join(map(json.dumps, lines)).encode())
                assert status == (412 if refused else 200), body
                sequence += not refused
                self.done += 1
        except BaseException as fault:
            self.fault = fault
            raise

    def _answer(self, body: bytes) -> tuple[int, bytes]:
        turn = iter(range(self.number, 1 << 20))

        def look() -> tuple[int, bytes] | None:
            url = self.cluster.urls[next(turn) % len(self.cluster.urls)]
            try:
                status, answer = ask_once("POST", f"{url}/v1/append-all", body)
            except (OSError, HTTPException):
                return None
            return None if status in AGAIN else (status, answer)

        return wait_until(look, what="an answer", seconds=90)


def test_a_killed_node_leaves_all_or_none(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3") as cluster:
        names = list(names_by_leader(cluster).values())
        assert len(names) == 3, "each node leads the group of one"
        for name in names:
            assert ask("PUT", f"{cluster.urls[0]}/v1/stream/{name}")[0] == 201
        writers = [Writer(cluster, names, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        wait_until(lambda: all(writer.done >= 3 for writer in writers), what="requests before")
        cluster.kill(2)
        wait_until(lambda: all(writer.done >= 6 for writer in writers), what="requests without it")
        cluster.start(2)
        for writer in writers:
            writer.join(120)
            assert writer.fault is None and writer.done == REQUESTS
        wanted = [[number, count] for number in range(WRITERS) for count in range(REQUESTS) if count % 3 < 2]  # fmt: skip
        for name in names:
            found = records(cluster.urls[0], name)
            assert sorted(found) == wanted, name
        with Client(cluster.urls[2]) as client:
            ends = [client.stream(name).head().offset for name in names]
            both = [StreamAppend(stream=name, records=["x"], if_match=end) for name, end in zip(names, ends, strict=True)]  # fmt: skip
            assert [outcome.ok for outcome in client.append_all(both)] == [True] * 3
            with pytest.raises(ConditionFailed):
                client.append_all(both)
        assert [records(cluster.urls[1], name)[-1] for name in names] == ["x"] * 3
