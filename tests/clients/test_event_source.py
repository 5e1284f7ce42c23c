"""A browser's plain `EventSource` follows a stream. It resumes after its server was killed,
restarted, or closed the connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from chromium import Browser, browser
from worlds.steady_node import steady_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

JSON = {"Content-Type": "application/json"}
FOLLOW = """
  window.got = []; window.opened = 0; window.errors = 0; window.ended = false
  window.source = new EventSource(%r)
  source.addEventListener("open", () => opened++)
  source.addEventListener("error", () => errors++)
  source.addEventListener("data", (event) => got.push(...JSON.parse(event.data)))
  source.addEventListener("control", (event) => { if (JSON.parse(event.data).streamClosed) ended = true })
"""


@pytest.fixture
def origin() -> Iterator[str]:
    """A page of another origin than the server's, as an application's pages are."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>application</title>")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as pages:
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{pages.server_port}/"
        pages.shutdown()
        thread.join()


def test_it_goes_on_over_a_crash_and_a_restart_without_loss_or_repetition(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with (
        steady_node(tmp_path / "data") as server,
        httpx.Client(base_url=f"{server.url}/v1/stream/", timeout=60) as web,
    ):
        assert web.put("seen", headers=JSON).status_code == 201
        page = browser.open(origin)
        page.run(FOLLOW % f"{server.url}/v1/stream/seen?offset=now&live=sse")
        page.wait("opened === 1")
        for part, again in enumerate((server.crash, server.restart, None)):
            for number in range(part * 10, part * 10 + 10):
                assert web.post("seen", json=number, headers=JSON).status_code == 204
            page.wait(f"got.length >= {part * 10 + 10}")
            if again:
                again()
        assert page.run("got") == list(range(30))
        assert page.run("errors >= 2 && opened >= 3")


def test_it_stops_by_itself_at_the_end_of_a_closed_stream(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with (
        steady_node(tmp_path / "data") as server,
        httpx.Client(base_url=f"{server.url}/v1/stream/", timeout=60) as web,
    ):
        assert web.put("ended", headers=JSON).status_code == 201
        page = browser.open(origin)
        page.run(FOLLOW % f"{server.url}/v1/stream/ended?offset=-1&live=sse")
        page.wait("opened === 1")
        assert (
            web.post("ended", json="last", headers=JSON | {"Stream-Closed": "true"}).status_code
            == 204
        )
        page.wait("ended")
        page.wait("source.readyState === EventSource.CLOSED")
        assert page.run("got") == ["last"]
        assert page.run("opened") == 1
