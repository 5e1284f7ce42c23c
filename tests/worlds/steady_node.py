"""A node that keeps its address over restarts, as clients that resume expect it; killed, or stopped
as an operator would."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from free_ports import two_free_ports
from polling import wait_until
from product import RunningNode, alive


class SteadyNode:
    """A node whose `url` never changes."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._port = two_free_ports()
        self.url = f"http://127.0.0.1:{self._port}"
        self._node = self._start()

    def restart(self) -> None:
        """Stop the node by SIGTERM, and start it."""
        assert self._node.stop() == 0
        self._node.close()
        self._node = self._start()

    def crash(self) -> None:
        """Send SIGKILL to the supervisor and its cores at once, and start the node."""
        processes = [
            *psutil.Process(self._node.process.pid).children(recursive=True),
            psutil.Process(self._node.process.pid),
        ]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(process.pid, signal.SIGKILL)
        self._node.process.wait(30)
        self._node.close()
        wait_until(
            lambda: not any(alive(process) for process in processes), what="the cores to be gone"
        )
        self._node = self._start()

    def close(self) -> None:
        self._node.close()

    def _start(self) -> RunningNode:
        listen = ("--listen", f"127.0.0.1:{self._port}", "--kafka-listen", "127.0.0.1:0")
        return RunningNode(self._data, listen)


@contextmanager
def steady_node(data: Path) -> Iterator[SteadyNode]:
    """Run a node with its data in `data` until `with` ends."""
    node = SteadyNode(data)
    try:
        yield node
    finally:
        node.close()
