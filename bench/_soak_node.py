"""The node that the soak is at: `_fast_node` as a process, started, stopped and killed on one
port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from chaos.ports import keep_row

SPEED = 4320.0  # a month in ten minutes


class Failed(Exception):
    """A fault of the node."""


class Node:
    """The server; `url` outlives its restarts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = keep_row(2)  # the admin port is the next one
        self.url = f"http://127.0.0.1:{self._port}"
        self.data = folder / "data"
        self.starts = 0
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        flags = {
            "--listen": f"127.0.0.1:{self._port}",
            "--data": str(self.data),
            "--cores": "1",
            "--cold-flush-bytes": "2MiB",
        }
        command = [
            sys.executable,
            "-m",
            "bench._fast_node",
            *(word for pair in flags.items() for word in pair),
        ]
        with (self._folder / "log").open("ab") as log:
            variables = {**os.environ, "BENCH_SPEED": str(SPEED)}
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=variables, cwd=Path(__file__).parent.parent
            )
        self.starts += 1

    def stop(self, *, kill: bool) -> None:
        """Stop the node as an operator would. With `kill`: as a power cut that spares the disk."""
        if self._process.poll() is not None:
            raise Failed(f"the node ended by itself:\n{self.log()}")
        if kill:
            for process in [*self.cores(), self._process]:
                process.kill()
            self._process.wait()
        else:
            self._process.send_signal(signal.SIGTERM)
            if code := self._process.wait(30):
                raise Failed(f"the node ended with {code}:\n{self.log()}")

    def cores(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children()

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]
