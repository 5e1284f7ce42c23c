"""A node that wants tokens, is killed under a client and comes back on the same folder."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fault_proxy import Faults, fault_proxy
from free_ports import refusing_url
from polling import wait_until
from product import RunningNode, polynya, running_node

SECONDS = 120.0
NUMBERS = 600


class Guarded:
    """A node behind a proxy. `variables` are what its clients get in their environment."""

    def __init__(self, data: Path, faults: Faults, *flags: str) -> None:
        self._data = data
        self._faults = faults
        self._flags = ("--cores", "1", "--auth-required", *flags)

    @contextmanager
    def serving(self) -> Iterator[Guarded]:
        tokens = [self._token("root", "all,snapshot"), self._token("reader", "read")]
        with self._node() as node, refusing_url() as refusing:
            self.node = node
            with fault_proxy(self._address(), self._faults, 1) as self._proxy:
                keys = ("SERVER", "TOKEN", "READER", "REFUSING")
                self.variables = dict(zip(keys, (node.url, *tokens, refusing), strict=True))
                self.proxy_url = self._proxy.url
                yield self

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Kill the node, and serve its folder by another process behind the same proxy."""
        self.node.kill()
        with self._node() as self.node:
            self._proxy.server = self._address()
            yield

    def _node(self) -> AbstractContextManager[RunningNode]:
        return running_node(self._data, *self._flags)

    def _token(self, name: str, allow: str) -> str:
        made = polynya("token", "create", name, "--allow", allow, "--data", str(self._data))
        assert made.code == 0, made
        return made.out.strip()

    def _address(self) -> tuple[str, int]:
        parts = urlsplit(self.node.url)
        assert parts.hostname and parts.port
        return parts.hostname, parts.port


def survive(guarded: Guarded, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
    """Run a client that appends numbers and follows them; kill the node meanwhile. The client
    itself checks that nothing was lost and nothing came twice."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None
    output = process.stdout
    reader = threading.Thread(target=lambda: lines.extend(iter(output.readline, "")), daemon=True)
    reader.start()
    try:
        wait_until(
            lambda: lines or process.poll() is not None,
            what="the client to append",
            seconds=SECONDS,
        )
        with guarded.restarted():
            wait_until(
                lambda: process.poll() is not None, what="the client to end", seconds=SECONDS
            )
    finally:
        process.kill()
        process.wait()
        reader.join(SECONDS)
        output.close()
    assert process.returncode == 0 and "nothing lost, nothing twice\n" in lines, "".join(lines)
