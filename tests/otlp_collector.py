"""An OpenTelemetry collector in this process, which keeps what it receives over OTLP/HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from http_threads import QuietHandler, serving


class Collector:
    """An HTTP server that keeps what it receives, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""


@contextmanager
def collector() -> Iterator[Collector]:
    kept = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 (a name of the base class)
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            kept.received.append((self.path, headers, body))
            self.send_response(kept.status)
            self.send_header("content-length", "0")
            self.end_headers()

    with serving(Handler) as kept.url:
        yield kept
