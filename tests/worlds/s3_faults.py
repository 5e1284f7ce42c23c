"""A proxy before an S3 server that refuses requests, delays responses, and drops responses of
completed writes."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import msgspec

SLOW_SECONDS = 0.1
WRITES = ("PUT", "POST", "DELETE")
OWN = ("connection", "transfer-encoding", "keep-alive")  # headers of one connection
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities from 0 to 1. `refuse`: 503 or 500, or no response, and no effect. `slow`: a
    late response. `lose`: a write takes effect; its response is a cut connection or a 500."""

    refuse: float = 0.0
    slow: float = 0.0
    lose: float = 0.0


class S3FaultProxy:
    """A proxy on a free port; only keys with `part` in them have faults. Requests are passed on
    unchanged, with the Host that the client signed. `counts` tallies the faults, `bytes_read`
    the bytes of GET responses."""

    def __init__(self, endpoint: str, faults: Faults, seed: int, part: str = "tables") -> None:
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.bytes_read = 0
        self._target = urlsplit(endpoint)
        self._part = part
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                with suppress(OSError):  # the client has gone
                    proxy.handle(self)

            do_GET = do_HEAD = do_PUT = _handle  # noqa: N815  (the library's names)
            do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, *said: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Pass a request on, or not."""
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        fault, how = self._drawn(request)
        if fault == "refuse":
            self._fail(request, how)
            return
        if fault == "slow":
            self._closed.wait(SLOW_SECONDS * how)
        status, headers, data = self._passed(request, body)
        if fault == "lose" and status < 300:
            self._fail(request, how)
            return
        request.send_response(status)
        for name, value in headers:
            if name.lower() not in (*OWN, "content-length", "date", "server"):
                request.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        request.send_header("content-length", str(length if length is not None else len(data)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)
            with self._lock:
                self.bytes_read += len(data)

    def _drawn(self, request: BaseHTTPRequestHandler) -> tuple[str, float]:
        """Return the fault of this request, or "", and a number from 0 to 1 for its kind."""
        with self._lock:
            chance, how = self._chance.random(), self._chance.random()
            kinds = [("refuse", self.faults.refuse), ("slow", self.faults.slow)]
            if request.command in WRITES:
                kinds.append(("lose", self.faults.lose))
            if self._part in request.path:
                for kind, share in kinds:
                    if chance < share:
                        self.counts[kind] += 1
                        return kind, how
                    chance -= share
            self.counts["passed"] += 1
            return "", how

    def _fail(self, request: BaseHTTPRequestHandler, how: float) -> None:
        request.close_connection = True
        if how < 1 / 3:
            return  # no answer at all
        request.send_response(503 if how < 2 / 3 else 500)
        request.send_header("content-length", str(len(BUSY)))
        request.send_header("connection", "close")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(BUSY)

    def _passed(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        server = http.client.HTTPConnection(
            self._target.hostname or "", self._target.port, timeout=60
        )
        try:
            server.putrequest(
                request.command, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name.lower() not in OWN:
                    server.putheader(name, value)
            server.endheaders(body or None)
            answer = server.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            server.close()
