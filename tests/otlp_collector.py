"""An OpenTelemetry collector in this process, which keeps what it receives over OTLP/HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Collector:
    """An HTTP server that keeps what it receives, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            kept.received.append((self.path, headers, body))
            self.send_response(kept.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
