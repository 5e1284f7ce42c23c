"""A node and workers of tables (`polynya lake run`) as processes, for the benchmarks of tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench._nodes import machine
from chaos.ports import keep_row

STOP_SECONDS = 60.0
BYTES = "application/octet-stream"
SOURCE = Path(__file__).resolve().parent.parent / "src"
__all__ = ["LakeNode", "lake_node", "machine", "wait", "workers"]


class LakeNode:
    """A running node: its tables and streams over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60.0)

    def is_ready(self) -> bool:
        try:
            return self.http.get("/v1/tables").status_code == 200
        except httpx.HTTPError:
            return False

    def create_table(self, name: str) -> None:
        """Create a table of the bucket of its name."""
        answer = self.http.put(f"/v1/tables/{name}", json={"prefix": f"{name}/"})
        answer.raise_for_status()

    def create_stream(self, name: str, content_type: str = "application/json") -> None:
        headers = {"content-type": content_type}
        self.http.put(f"/v1/stream/{name}", headers=headers).raise_for_status()

    def append(self, stream: str, records: Sequence[Any]) -> None:
        headers = {"content-type": "application/json"}
        body = json.dumps(records)
        self.http.post(f"/v1/stream/{stream}", content=body, headers=headers).raise_for_status()

    def append_bytes(self, stream: str, body: bytes) -> None:
        headers = {"content-type": BYTES}
        self.http.post(f"/v1/stream/{stream}", content=body, headers=headers).raise_for_status()

    def table(self, name: str) -> dict[str, Any]:
        """Return what the node tells of a table."""
        answer = self.http.get("/v1/tables").raise_for_status().json()
        (found,) = (each for each in answer["tables"] if each["name"] == name)
        return dict(found)

    def rows(self) -> dict[str, int]:
        """Return the rows of each table."""
        tables = self.http.get("/v1/tables").raise_for_status().json()["tables"]
        return {table["name"]: table["rows"] for table in tables}


@contextmanager
def lake_node(directory: str | None, source: Path = SOURCE) -> Iterator[LakeNode]:
    """Start a node of one core, of the code in `source`, on an empty folder."""
    with tempfile.TemporaryDirectory(prefix="polynya-bench-", dir=directory) as folder:
        url = f"127.0.0.1:{keep_row(2)}"
        arguments = ["serve", "--listen", url, "--data", f"{folder}/data", "--cores", "1"]
        with _running([_command(arguments)], {"PYTHONPATH": str(source)}, Path(folder)):
            node = LakeNode(f"http://{url}")
            try:
                wait(node.is_ready, "the node")
                yield node
            finally:
                node.http.close()


@contextmanager
def workers(
    node: LakeNode,
    folder: Path,
    *,
    count: int,
    interval: str,
    pinned: bool,
    source: Path = SOURCE,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers. `pinned`: each has a core of its own."""
    arguments = [
        "lake",
        "run",
        "--interval",
        interval,
        *(["--master", "local[1]"] if pinned else []),
    ]
    commands = [
        [*(["taskset", "-c", str(number)] if pinned else []), *_command(arguments)]
        for number in range(count)
    ]
    variables = {"POLYNYA_SERVER": node.url, "PYTHONPATH": str(source)}
    with _running(commands, variables, folder) as processes:
        yield processes


def cpu_seconds(pid: int) -> float:
    """Return the CPU of a process, of its descendants, and of those that have ended."""
    root = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:4]) for each in [root, *root.children(recursive=True)])


def wait(look: Callable[[], bool], what: str, seconds: float = 600.0, pause: float = 0.02) -> None:
    """Poll until `look` is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(pause)


def send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to processes and to all that they have started."""
    for process in processes:
        os.killpg(process.pid, number)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "polynya", *arguments]


@contextmanager
def _running(
    commands: Sequence[Sequence[str]], variables: dict[str, str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = os.environ | variables
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"process-{number}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=log, env=environment, start_new_session=True
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                send([process], signal.SIGCONT)
                process.terminate()
        for process in processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                send([process], signal.SIGKILL)
                process.wait()
