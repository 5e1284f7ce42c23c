"""A node that has streams of every kind and no client uses hardly any CPU: no job of it spins."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest
from polling import wait_until
from product import RunningNode

pytestmark = pytest.mark.process

SHARE_MAX = 0.15  # of one CPU: a loop that spins takes a whole one, or half of a busy one
WINDOW_SECONDS = 5.5  # most jobs begin within it
JSON = {"Content-Type": "application/json"}


def call(method: str, url: str, body: object = None, **headers: str) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, JSON | headers, method=method), timeout=60) as answer:
        assert answer.status in (200, 201, 204)


def test_an_idle_node_rests(tmp_path: Path) -> None:
    node = RunningNode(tmp_path / "data", ("--cores", "1"))
    try:
        for name, headers in (
            ("plain", {}),
            ("kept", {"Stream-Retention-Bytes": "1000"}),
            ("brief", {"Stream-TTL": "86400"}),
            ("diskless", {"Stream-Profile": "diskless"}),
            ("leased", {"Stream-Profile": "leased"}),
        ):
            call("PUT", f"{node.url}/v1/stream/idle/{name}", **headers)
            call("POST", f"{node.url}/v1/stream/idle/{name}", ["x" * 900] * 3)
        call("PUT", f"{node.url}/v1/topics/orders", {"partitions": 2})
        (core,) = psutil.Process(node.process.pid).children()
        wait_until(
            lambda: all(core.cpu_percent(WINDOW_SECONDS) < 100 * SHARE_MAX for _ in range(2)),
            what="the node to rest",
            seconds=60,
        )
    finally:
        node.close()
