"""`polynya cost` beside the log of a real S3 server."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import msgspec
import pytest
from e2e_world import JSON, World
from s3_server import S3Server, s3_server
from worlds.s3_log import S3Log, logged

from polynya.cost import CostReport
from polynya.cost.history import UsageFile
from polynya.cost.report import Usage, usage_of
from polynya.objectstore import REQUESTS
from polynya.objectstore.usage import DOWN, UP

__all__ = ["s3_server"]
pytestmark = pytest.mark.process

RECORD = "x" * 20_000
TURNS = 6
AT_STOP = 2  # requests under way at a stop, which count although they may not have left


def report(world: World) -> CostReport:
    answer = world.ask("GET", "/v1/cost?hours=2")
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=CostReport)


def counted(world: World) -> Usage:
    """Return what the cores of a stopped node have in their files."""
    total = Counter[tuple[str, ...]]()
    for path in (world.data / "usage").iterdir():
        for _, counts in msgspec.json.decode(path.read_bytes(), type=UsageFile).hours:
            for key, count in counts:
                total[key] += count
    return usage_of(total.items())


def differences(usage: Usage, log: S3Log) -> dict[str, tuple[int, int]]:
    """Return (counted, logged) for what differs by more than one percent, or of one kind of request
    by more than those at a stop."""
    found = {name: (usage.requests(name), log.counts[name]) for name in (*REQUESTS, UP, DOWN)}
    kinds = [found[name] for name in REQUESTS]
    found["all"] = sum(count for count, _ in kinds), sum(logged for _, logged in kinds)
    return {
        name: (count, logged)
        for name, (count, logged) in found.items()
        if abs(count - logged) > max(0.01 * logged, AT_STOP if name in REQUESTS else 0)
    }


def use(world: World) -> None:
    """Write replicated and diskless streams, flush, read back, delete."""
    for profile in ("replicated", "diskless"):
        for number in range(4):
            path = f"/v1/stream/{profile}/s{number}"
            head = JSON | {"stream_profile": profile}
            with contextlib.closing(world.connect()) as client:
                assert client.ask("PUT", path, **head).status == 201
                for turn in range(TURNS):
                    body = json.dumps([turn, RECORD]).encode()
                    assert client.ask("POST", path, body, **JSON).status == 204
    assert world.flush().status == 200
    for profile in ("replicated", "diskless"):
        for number in range(4):
            assert len(world.records(f"{profile}/s{number}")) == 2 * TURNS


def test_the_counters_agree_with_the_log_of_the_s3_server(
    world: World, s3_server: S3Server
) -> None:
    with logged(s3_server.endpoint) as (endpoint, log):
        settings = {
            f"POLYNYA_COLD_{name.upper()}": value
            for name, value in (s3_server.settings() | {"s3_endpoint": endpoint}).items()
        }
        settings["POLYNYA_COLD_COMPRESSION"] = "none"  # few bytes would differ by more than 1 %
        world.start("--cores", "2", **settings)
        use(world)
        world.stop()
        world.start("--cores", "2", **settings)
        for number in range(4):
            assert len(world.records(f"replicated/s{number}")) == 2 * TURNS
        (node,) = report(world).nodes
        usage = node.usage
        assert usage.appends == 8 * TURNS and usage.append_bytes > 8 * TURNS * len(RECORD)
        assert usage.store["diskless"]["put"] and usage.store["flush"]["put"]
        assert usage.store["read"]["down"] > 2 * TURNS * len(RECORD), "after the restart"
        for work in ("diskless", "flush"):
            packed = usage.packed[work]
            assert packed["stored"] > packed["payload"] > 4 * TURNS * len(RECORD)
        world.stop()
        found = differences(counted(world), log)
        assert not found, found
