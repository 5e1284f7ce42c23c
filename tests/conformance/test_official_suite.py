"""The official Durable Streams suite, all of it: 338 tests, subscriptions included."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest
from long_tests import long
from node_js import environment, installed, node
from product import ahead_of_others, running_node
from worlds.dev_cluster import dev_cluster
from worlds.round_robin import in_turn

TESTS = 338
LONG_POLL_SECONDS = 0.5
SUITE_SECONDS = 280
FLAGS = ("--long-poll-timeout", str(LONG_POLL_SECONDS))

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("cores", long([2, 1]))
def test_the_official_suite_passes_whole(tmp_path: Path, cores: int) -> None:
    with (
        ahead_of_others(),
        running_node(tmp_path / "data", *FLAGS, "--cores", str(cores)) as server,
    ):
        _passes_whole(server.url, tmp_path)


@pytest.mark.parametrize("interval", ["10ms", *long(["250ms"])])
def test_the_official_suite_passes_whole_on_diskless_streams(tmp_path: Path, interval: str) -> None:
    diskless = ("--default-profile", "diskless", "--diskless-interval", interval)
    with (
        ahead_of_others(),
        running_node(tmp_path / "data", *FLAGS, *diskless, "--cores", "2") as server,
    ):
        # some of its tests make hundreds of appends, one after the other
        _passes_whole(server.url, tmp_path, test_seconds=300)


@pytest.mark.parametrize("profile", ["replicated", *long(["diskless"])])
def test_the_official_suite_passes_whole_through_three_nodes_in_turn(
    tmp_path: Path, profile: str
) -> None:
    flags = ("--default-profile", profile, "--diskless-interval", "10ms", "--cores", "1")
    with (
        ahead_of_others(),
        dev_cluster(tmp_path / "cluster", *FLAGS, *flags) as cluster,
        in_turn(cluster.urls) as url,
    ):
        _passes_whole(url, tmp_path)


@pytest.mark.parametrize("cores", long([1]))
def test_the_official_suite_passes_whole_over_http2(tmp_path: Path, cores: int) -> None:
    flags = (*FLAGS, "--tls-self", "--cores", str(cores))
    with ahead_of_others(), running_node(tmp_path / "data", *flags) as server:
        _passes_whole(server.url, tmp_path, Path(__file__).parent / "http2")
        metrics = httpx.get(f"{server.admin}/metrics", timeout=60).text
    streams = re.search(r"^polynya_http2_streams_total (\d+)", metrics, re.MULTILINE)
    assert streams is not None and int(streams[1]) > 2 * TESTS
    assert not re.search(
        r'^polynya_http2_refused_total\{reason="\w+"\} [1-9]', metrics, re.MULTILINE
    )


def _passes_whole(
    url: str, tmp_path: Path, source: Path = Path(__file__).parent, *, test_seconds: int = 30
) -> None:
    """Run the whole suite with a raised priority (`ahead_of_others`): it checks TTLs of two
    seconds after 1.5 s, without a retry. `test_seconds`: limit of one of its tests."""
    name = "conformance" if source == Path(__file__).parent else f"conformance-{source.name}"
    folder = installed(source, name)
    report = tmp_path / "report.json"
    settings = environment(
        CONFORMANCE_URL=url, CONFORMANCE_LONG_POLL_MS=str(round(LONG_POLL_SECONDS * 1000))
    )
    command = [
        node(),
        "node_modules/vitest/vitest.mjs",
        "run",
        "-c",
        "vitest.config.mjs",
        "--reporter=json",
        f"--outputFile={report}",
        f"--testTimeout={test_seconds}000",
    ]
    ran = subprocess.run(
        command,
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=max(SUITE_SECONDS, 3 * test_seconds),
        check=False,
    )
    assert report.exists(), ran.stdout + ran.stderr
    results = [
        test
        for file in json.loads(report.read_text())["testResults"]
        for test in file["assertionResults"]
    ]
    failed = [
        f"{test['fullName']}\n    {_first_line(test)}"
        for test in results
        if test["status"] != "passed"
    ]
    assert not failed, f"{len(failed)} of {len(results)} did not pass:\n" + "\n".join(failed)
    assert Counter(test["status"] for test in results) == {"passed": TESTS}


def _first_line(test: dict[str, list[str]]) -> str:
    return next(iter(test.get("failureMessages") or ["(no message)"])).splitlines()[0]
