"""A proxy before an S3 server that logs each request, as an access log of S3 would."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP = frozenset(("connection", "transfer-encoding", "keep-alive"))


class S3Log:
    """The requests that were answered: put, get, head, list and delete; and the bytes of objects
    that went up and down."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._lock = threading.Lock()

    def add(self, kind: str, up: int, down: int) -> None:
        with self._lock:
            self.counts[kind] += 1
            self.counts["up"] += up if kind == "put" else 0
            self.counts["down"] += down if kind == "get" else 0


def kind_of(method: str, query: str) -> str:
    """Return what S3 would charge for."""
    if method == "GET" and "list-type=" in query:
        return "list"
    if method == "POST" and "delete" in query:
        return "delete"
    return method.lower()


@contextmanager
def logged(endpoint: str) -> Iterator[tuple[str, S3Log]]:
    """Start a proxy before this endpoint. Give its endpoint and its log."""
    location, log = urlsplit(endpoint), S3Log()
    assert location.hostname is not None and location.port is not None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        upstream: http.client.HTTPConnection | None = None

        def setup(self) -> None:
            super().setup()
            self.upstream = http.client.HTTPConnection(location.hostname or "", location.port)

        def finish(self) -> None:
            assert self.upstream is not None
            self.upstream.close()
            super().finish()

        def forward(self) -> None:
            assert self.upstream is not None
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = urlsplit(self.path)
            self.upstream.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP:
                    self.upstream.putheader(name, value)
            self.upstream.endheaders(body)
            answer = self.upstream.getresponse()
            data = answer.read()
            if answer.status < 500:
                good = answer.status < 300
                log.add(kind_of(self.command, path.query), len(body), len(data) if good else 0)
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP | {"content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length", "0")
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", log
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
