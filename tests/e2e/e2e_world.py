"""A node with its data for the end-to-end tests: started, killed in pieces, started again; and a
plain blocking HTTP connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from polling import wait_until
from product import TAG, RunningNode, alive, polynya, processes_with


class Answer:
    """Status, headers (names in lower case) and body of one answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]

    @property
    def code(self) -> str:
        """Return the code of the error in the body."""
        return str(json.loads(self.body)["error"]["code"])

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.headers}, {self.body[:300]!r})"


class Lost(Exception):
    """No answer came: what became of the request is unknown."""


class World:
    """One data folder and at most one node on it. `ask` goes to the node that is running now."""

    kind: type[RunningNode] = RunningNode

    def __init__(self, data: Path) -> None:
        self.data = data
        self.tag = secrets.token_hex(8)
        self.node: RunningNode | None = None
        self._nodes: list[RunningNode] = []

    def start(self, *flags: str, **variables: str) -> RunningNode:
        self.node = self.kind(self.data, flags, **{TAG: self.tag}, **variables)
        self._nodes.append(self.node)
        return self.node

    def refused(self, *flags: str, seconds: float = 60.0, **variables: str) -> tuple[int, str]:
        """Start a node that must refuse; return its exit code and output."""
        arguments = ("serve", "--listen", "127.0.0.1:0", "--data", str(self.data), *flags)
        done = polynya(*arguments, seconds=seconds, **{TAG: self.tag}, **variables)
        return done.code, done.out + done.err

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.node is not None
        code = self.node.stop()
        self.node.close()
        return code

    @property
    def url(self) -> str:
        assert self.node is not None
        return self.node.url

    @property
    def admin(self) -> str:
        assert self.node is not None
        return self.node.admin

    @property
    def log(self) -> str:
        assert self.node is not None
        return "".join(self.node.log)

    def processes(self) -> list[psutil.Process]:
        """Return every living process of this world, the node's cores and strays included; one that
        is just ending may be missing."""
        return processes_with(TAG, self.tag)

    def cores(self) -> list[psutil.Process]:
        """Return the core processes of the running node."""
        assert self.node is not None
        try:
            return psutil.Process(self.node.process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def kill_cores(self) -> None:
        for core in self.cores():
            core.kill()

    def kill_supervisor(self) -> None:
        """Kill the supervisor alone: its cores must exit on their own."""
        assert self.node is not None
        self.node.kill()

    def kill_all(self) -> None:
        """Kill all processes, and return when they and their resources are gone."""
        killed = self.processes()
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert self.node is not None
        self.node.wait()
        wait_until(lambda: not any(map(alive, killed)), what="the killed processes to be gone")

    def wait_gone(self) -> None:
        """Wait until every process of this world has ended and its resources are free."""
        ending: list[psutil.Process] = []

        def gone() -> bool:
            ending.extend(self.processes())
            return not any(map(alive, ending)) and not self.processes()

        wait_until(gone, what="all processes of this world to end", seconds=60)

    def close(self) -> None:
        """Stop what runs; whatever is left then is a defect, and killed."""
        for node in self._nodes:
            node.close()
        try:
            self.wait_gone()
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    # --- requests ---------------------------------------------------------------------------------

    def connect(self, seconds: float = 60.0) -> Client:
        return Client(self.url, seconds)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send one request on a connection of its own. Raises `Lost`."""
        with contextlib.closing(self.connect()) as client:
            return client.ask(method, path, body, **headers)

    def flush(self) -> Answer:
        with contextlib.closing(Client(self.admin, 60.0)) as client:
            return client.ask("POST", "/v1/admin/flush")

    def records(self, name: str) -> list[Any]:
        """Read all of a JSON stream, page by page."""
        found: list[Any] = []
        with contextlib.closing(self.connect()) as client:
            offset = "-1"
            while True:
                page = client.ask("GET", f"/v1/stream/{name}?offset={offset}")
                assert page.status == 200, page
                found += json.loads(page.body)
                offset = page.next_offset
                if "stream-up-to-date" in page.headers:
                    return found


class Client:
    """A keep-alive connection. `ask` raises `Lost` when it breaks before the whole response; the
    next call reconnects."""

    def __init__(self, url: str, seconds: float = 60.0) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self._connection.request(method, path, body, spelled)
            response = self._connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Lost(f"{method} {path}: {error!r}") from error

    def close(self) -> None:
        self._connection.close()


JSON = {"Content_Type": "application/json"}


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


@contextlib.contextmanager
def raw(url: str, seconds: float = 60.0) -> Iterator[socket.socket]:
    """Open a bare connection until `with` ends."""
    with socket.create_connection(address(url), timeout=seconds) as connection:
        yield connection


def live_readers(
    world: World, target: str, count: int, stack: contextlib.ExitStack
) -> list[socket.socket]:
    """Open connections that request `target`, such as `shop/orders?offset=now&live=sse`, and keep
    them open."""
    found = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(address(world.url), timeout=60))
        connection.sendall(f"GET /v1/stream/{target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found.append(connection)
    return found


def drain(connection: socket.socket) -> bytes:
    """Read everything until the other side closes; a reset ends it too."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            parts.append(piece)
    return b"".join(parts)


def descriptors(processes: list[psutil.Process]) -> int:
    return sum(process.num_fds() for process in processes)


def file_sizes(folder: Path) -> list[os.stat_result]:
    """Return the sizes of all files below a folder while a server creates and deletes files in it."""
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found.append(os.stat(os.path.join(path, name)))
    return found


def resident(processes: list[psutil.Process]) -> int:
    """Return the sum of the RSS in bytes."""
    return sum(process.memory_info().rss for process in processes)


def is_root() -> bool:
    return os.geteuid() == 0


def metric(world: World, name: str) -> float:
    """Return a metric of the whole node, summed over its labels. A core that is too busy to say its
    part is asked again."""

    def whole() -> list[str] | None:
        lines = world.ask("GET", "/metrics").body.decode().splitlines()
        return (
            lines if _value(lines, "polynya_cores_up") == _value(lines, "polynya_cores") else None
        )

    return _value(wait_until(whole, what="what all cores count"), name)


def _value(lines: list[str], name: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{"))
    )


def read_until(connection: socket.socket, word: bytes) -> bytes:
    """Read until `word` appears or the connection ends. A reset is an end."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while word not in data and (piece := connection.recv(65536)):
            data += piece
    return data
