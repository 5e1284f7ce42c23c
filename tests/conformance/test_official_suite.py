"""The official Durable Streams suite, all of it: 338 tests, subscriptions included."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

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
        _passes_whole(server.url, tmp_path)


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


def _passes_whole(url: str, tmp_path: Path) -> None:
    """Run the whole suite with a raised priority (`ahead_of_others`): it checks TTLs of two
    seconds after 1.5 s, without a retry."""
    folder = installed(Path(__file__).parent, "conformance")
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
    ]
    ran = subprocess.run(
        command,
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
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
