"""The official TypeScript client, the State protocol and Yjs from npm. Each runs its own features
against a node; the client survives restarts."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from long_tests import long
from node_js import environment, installed, node
from polling import wait_until
from product import running_node
from worlds.steady_node import steady_node

STORIES = {"typescript": 20, "state": 3, "yjs": 4}
COUNT = 600

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder() -> Path:
    return installed(Path(__file__).parent, "clients")


@pytest.mark.parametrize("suite", STORIES)
@pytest.mark.parametrize("cores", [2, *long([1])])
def test_a_foreign_client_works(suite: str, cores: int, folder: Path, tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--cores", str(cores)) as server:
        # the Yjs server leaves connections open
        command = [
            node(),
            "--test",
            "--test-force-exit",
            "--test-reporter=tap",
            f"{suite}.test.mjs",
        ]
        ran = subprocess.run(
            command,
            cwd=folder,
            env=environment(SERVER=server.url),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    summary = dict(
        re.findall(r"^# (tests|pass|fail|skipped|todo) (\d+)$", ran.stdout, re.MULTILINE)
    )
    assert (ran.returncode, summary.get("fail")) == (0, "0"), ran.stdout + ran.stderr
    assert (summary["pass"], summary["skipped"], summary["todo"]) == (
        str(STORIES[suite]),
        "0",
        "0",
    ), ran.stdout


class Script:
    """A running JavaScript program; `lines` is its output."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [node(), *arguments],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def finish(self, seconds: float = 60.0) -> None:
        """Wait for it to end well."""
        try:
            self._process.wait(seconds)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(seconds)
            assert self._process.stdout and self._process.stderr
            complaint = self._process.stderr.read()
            self._process.stdout.close()
            self._process.stderr.close()
        assert self._process.returncode == 0, complaint

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append(line.strip())


@pytest.mark.parametrize("live", ["sse", *long(["long-poll"])])
def test_a_reader_lives_through_restarts_and_misses_nothing(
    live: str, folder: Path, tmp_path: Path
) -> None:
    with (
        steady_node(tmp_path / "data") as server,
        httpx.Client(base_url=f"{server.url}/v1/stream/", timeout=60) as web,
    ):
        kind = {"Content-Type": "application/json"}
        assert web.put("followed", headers=kind).status_code == 201
        reader = Script(folder, "follow.mjs", f"{server.url}/v1/stream/followed", live)
        try:
            for part, again in enumerate((server.crash, server.restart, None)):
                for number in range(part * 10, part * 10 + 10):
                    assert web.post("followed", json=number, headers=kind).status_code == 204
                wait_until(
                    lambda part=part: len(reader.lines) >= part * 10 + 5,
                    what="the reader to follow",
                )
                if again:
                    again()
            assert web.post("followed", headers={"Stream-Closed": "true"}).status_code == 204
        finally:
            reader.finish()
    assert [json.loads(line) for line in reader.lines] == list(range(30))


def test_a_producer_lives_through_a_crash_and_stores_everything_once(
    folder: Path, tmp_path: Path
) -> None:
    with (
        steady_node(tmp_path / "data") as server,
        httpx.Client(base_url=f"{server.url}/v1/stream/", timeout=60) as web,
    ):
        assert web.put("produced", headers={"Content-Type": "application/json"}).status_code == 201
        writer = Script(folder, "produce.mjs", f"{server.url}/v1/stream/produced", str(COUNT))
        try:
            wait_until(lambda: writer.lines, what="the producer to begin")
            server.crash()
        finally:
            writer.finish()
        answer = web.get("produced")
        assert answer.json() == list(range(COUNT))
        assert answer.headers["Stream-Closed"] == "true"
