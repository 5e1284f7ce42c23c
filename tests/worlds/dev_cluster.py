"""A cluster of real processes for tests, by `polynya cluster dev`; nodes are lost and started again
as its users would."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from free_ports import ports_in_a_row
from polling import wait_until
from product import STOP_SECONDS, WITH_US, CommandProcess, alive, environment
from warm_commands import WarmProcess, can_go_on, go_on, serve_arguments

START_SECONDS = 90.0
SMALL = {"--cores": "1", "--groups": "6"}
Started = subprocess.Popen[bytes] | WarmProcess
PORTS = 80  # of eight nodes: also a node that is down keeps its own


class DevCluster(CommandProcess):
    """`urls` of the nodes, the first first. `variables` are in the environment of all."""

    def __init__(self, folder: Path, port: int, *flags: str, **variables: str) -> None:
        super().__init__(
            *("cluster", "dev", "--listen", f"127.0.0.1:{port}", "--data", str(folder), *flags),
            **variables,
        )
        self.folder, self._variables = folder, variables
        self.urls: list[str] = []
        self._started: list[Started] = []

    def wait_started(self) -> None:
        wait_until(
            lambda: self._has("stop     Ctrl-C"),
            what="the cluster to be well",
            seconds=START_SECONDS,
        )
        self.urls = re.findall(r"^  node \d+  (http\S+)", "".join(self.log), re.MULTILINE)

    def node(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def kill(self, number: int) -> None:
        """Send SIGKILL to the node's supervisor; its cores die with it."""
        # else nothing is said when it goes
        wait_until(lambda: not self._is_down(number), what=f"node {number} to be seen up")
        os.kill(int((self.node(number) / "node.pid").read_text()), signal.SIGKILL)
        wait_until(lambda: self._is_down(number), what=f"node {number} to be gone")

    def stop_node(self, number: int) -> None:
        """Send SIGTERM to the node, as for an upgrade: it hands over its leaderships."""
        process = psutil.Process(int((self.node(number) / "node.pid").read_text()))
        process.terminate()
        wait_until(lambda: not alive(process), what=f"node {number} to be stopped")

    def start(self, number: int, **more: str) -> None:
        """Run the node's start.sh, with additions to the environment."""
        more = {**self._variables, **more}
        script = self.node(number) / "start.sh"
        arguments = tuple(serve_arguments(script))
        with (self.node(number) / "node.log").open("ab") as log, open(os.devnull) as nothing:
            if can_go_on(arguments, more):
                streams = (nothing.fileno(), log.fileno(), log.fileno())
                process: Started = go_on(arguments, environment(**more), streams)
            else:
                command = [*WITH_US, str(script)]
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(**more))
            self._started.append(process)

    def wipe(self, number: int) -> None:
        """Delete all that the node had, but for what starts it."""
        for entry in self.node(number).iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in ("polynya.toml", "start.sh", "node.log"):
                entry.unlink()

    def pause(self, number: int, stop: bool) -> None:
        """Send SIGSTOP or SIGCONT to all processes of the node."""
        supervisor = psutil.Process(int((self.node(number) / "node.pid").read_text()))
        for process in (supervisor, *supervisor.children(recursive=True)):
            process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    def view(self, number: int) -> dict[str, Any]:
        """Return the cluster as node `number` sees it."""
        with urlopen(f"{self.urls[number - 1]}/v1/cluster", timeout=30) as answer:
            view: dict[str, Any] = json.load(answer)
            return view

    def wait_until_well(self, number: int) -> dict[str, Any]:
        """Wait until node `number`, which may be starting, reports healthy. All replicas have the
        entries committed at its first report, even under writers."""
        wanted: dict[int, int] = {}
        seen: list[object] = []

        def look() -> dict[str, Any] | None:
            try:
                view = self.view(number)
            except (OSError, HTTPException) as error:
                seen[:] = [error]
                return None
            groups = {group["group"]: group for group in view["groups"]}
            behind = {
                each: group["behind"]
                for each, group in groups.items()
                if _applied(group) < wanted.get(each, 0)
            }
            seen[:] = [view["problems"], behind]
            if view["problems"] or not wanted:
                wanted.update(
                    {}
                    if view["problems"]
                    else {each: group["commit"] for each, group in groups.items()}
                )
                return None
            return None if behind else view

        try:
            return wait_until(look, what=f"the cluster to be well for node {number}", seconds=100)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {seen}") from None

    def logs(self) -> str:
        return "".join(
            path.read_text(errors="replace") for path in self.folder.glob("node-*/node.log")
        )

    def stop(self) -> int:
        """Send Ctrl-C, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(STOP_SECONDS)
        for process in self._started:
            process.wait(STOP_SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait(STOP_SECONDS)
        self.end_reading()

    def _is_down(self, number: int) -> bool:
        """Report whether the last log line about the node says that it is down."""
        found = [line for line in list(self.log) if line.startswith(f"node {number} is ")]
        assert self.process.poll() is None, "it ended:\n" + "".join(self.log)
        return bool(found) and "is down" in found[-1]

    def _has(self, text: str) -> bool:
        found = any(text in line for line in list(self.log))
        assert found or self.process.poll() is None, "it ended:\n" + "".join(self.log)
        return found


def _applied(group: dict[str, Any]) -> int:
    """Return the index of the last entry that all replicas of a group have."""
    applied: int = group["commit"] - max(group["behind"].values(), default=0)
    return applied


@contextmanager
def dev_cluster(folder: Path, *flags: str, **variables: str) -> Iterator[DevCluster]:
    """Run a cluster, by default with few cores and groups: each costs CPU. `variables`: of the
    environment."""
    for flag, few in SMALL.items():
        flags = flags if flag in flags else (*flags, flag, few)
    with ports_in_a_row(PORTS) as port:
        cluster = DevCluster(folder, port, *flags, **variables)
        try:
            cluster.wait_started()
            yield cluster
        finally:
            cluster.close()
