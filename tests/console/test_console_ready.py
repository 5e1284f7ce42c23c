"""The node's readiness in the corner of the console: red within seconds after the node is down,
silent or not ready, with the reason, and green again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from chromium import Browser, Page, browser

from polynya.console.assets import Assets

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

WITHIN_SECONDS = 10.0  # two for the poll, three for a silent node; the rest is the machine's
REASON = "[-] core 0 journal: the disk is full"


class Node(BaseHTTPRequestHandler):
    """A server that shows the console with a scripted readiness."""

    assets = Assets()
    state = "ready"  # or "not ready", "silent"
    goes_on = threading.Event()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/console/"):
            answer = self.assets.answer("GET", path.removeprefix("/console/"), {})
            assert answer is not None
            self._answer(answer.status, answer.content_type, answer.body, dict(answer.headers))
        elif self.state == "silent":
            self.goes_on.wait(60)
        elif path == "/readyz" and self.state == "not ready":
            self._answer(503, "text/plain", f"{REASON}\nnot ready\n".encode())
        elif path == "/readyz":
            self._answer(200, "text/plain", b"ready\n")
        else:
            self._answer(200, "application/json", b'{"streams":[],"next":null}')

    def _answer(
        self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        length = {"Content-Type": content_type, "Content-Length": str(len(body))}
        for name, value in {**length, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Node.state = "ready"
    Node.goes_on.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Node.goes_on.set()
        server.shutdown()
        thread.join()


def wait_state(page: Page, state: str) -> str:
    """Wait for the word in the corner, and return what its title tells."""
    page.wait(
        f"document.querySelector('#status').dataset.state === '{state}' && "
        f"document.querySelector('#status .word').textContent === '{state}'",
        seconds=WITHIN_SECONDS,
    )
    return str(page.run("document.querySelector('#status').title"))


def colour(page: Page) -> str:
    return str(page.run("getComputedStyle(document.querySelector('#status .dot')).backgroundColor"))


def test_the_corner_turns_red_while_the_node_is_not_ready_or_silent(
    browser: Browser, server: str
) -> None:
    page = browser.open(f"{server}/console/")
    wait_state(page, "ready")
    green = colour(page)
    Node.state = "not ready"
    assert REASON in wait_state(page, "not ready")
    red = colour(page)
    assert red != green
    Node.state = "ready"
    wait_state(page, "ready")
    assert colour(page) == green
    Node.state = "silent"
    begun = time.monotonic()
    assert "the node does not respond" in wait_state(page, "down")
    assert colour(page) == red and time.monotonic() - begun < WITHIN_SECONDS
    page.run("location.hash = '#/health'")
    page.wait("document.querySelector('.verdict')?.textContent === 'Down'")
    Node.state = "ready"
    Node.goes_on.set()
    wait_state(page, "ready")
    assert colour(page) == green
    page.call("Page.close")
