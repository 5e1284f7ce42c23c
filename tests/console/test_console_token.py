"""The access token of the console: asked for when the server wants one, sent with everything, kept
in the tab alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from chromium import Browser, Page, browser
from polling import wait_until
from product import polynya, running_node

from polynya.console.assets import Assets

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

TOKEN = "sesame"
OFFSET = "0000000000000001_0000000000000010"
ENTRY = {
    "name": "secret",
    "content_type": "application/json",
    "next_offset": OFFSET,
    "closed": False,
    "incarnation": "7",
    "created_at": "2026-01-01T00:00:00Z",
}
EVENTS = (
    b'id: x\nevent: data\ndata:[{"offset":1,"timestamp":null,"key":null,"headers":[],"value":1}]\n\n'
    b"id: x\nevent: control\n"
    b'data:{"streamNextOffset":"0000000000000002_0000000000000018","upToDate":true,"streamClosed":true}\n'
    b"\n"
)


class Guarded(BaseHTTPRequestHandler):
    """A server that shows its console to anybody, and the rest to those who know the word."""

    assets = Assets()
    asked: list[tuple[str, str]] = []  # noqa: RUF012 (path and authorization of every request below /v1)
    slow: tuple[str, str] | None = None  # path and authorization of requests that wait for `go_on`
    go_on = threading.Event()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/console/"):
            answer = self.assets.answer("GET", path.removeprefix("/console/"), {})
            assert answer is not None
            self._answer(answer.status, answer.content_type, answer.body, dict(answer.headers))
        elif path == "/readyz":
            self._answer(200, "text/plain", b"ready\n")
        else:
            self._guarded(path, query)

    do_HEAD = do_GET  # noqa: N815

    def _guarded(self, path: str, query: str) -> None:
        sent = self.headers.get("Authorization", "")
        self.asked.append((self.path, sent))
        if (path, sent) == self.slow:
            assert self.go_on.wait(60)
        if sent != f"Bearer {TOKEN}":
            body = json.dumps(
                {
                    "error": {
                        "code": "UNAUTHORIZED",
                        "message": "a token is needed",
                        "request_id": "1",
                    }
                }
            ).encode()
            self._answer(401, "application/json", body, {"WWW-Authenticate": "Bearer"})
        elif path == "/v1/streams":
            self._answer(
                200, "application/json", json.dumps({"streams": [ENTRY], "next": None}).encode()
            )
        elif "live=sse" in query:
            self._answer(200, "text/event-stream", EVENTS)
        else:
            whole = b'[{"offset":0,"timestamp":null,"key":null,"headers":[],"value":{"n": 0}}]'
            lines = whole if self.command == "GET" else b""
            self._answer(
                200,
                "application/json",
                lines,
                {
                    "Stream-Next-Offset": OFFSET,
                    "Stream-Incarnation": "7",
                    "Stream-Up-To-Date": "true",
                },
            )

    def _answer(
        self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Guarded.asked.clear()
    Guarded.slow = None
    Guarded.go_on.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def enter(page: Page, token: str) -> None:
    """Type a token into the dialog when it is open."""
    page.wait("document.querySelector('#token-dialog').open")
    page.run(
        f"document.querySelector('#token-input').value = '{token}'; "
        "document.querySelector('#token-form').requestSubmit()"
    )


def test_a_late_refusal_of_the_earlier_token_asks_for_no_other(
    browser: Browser, server: str
) -> None:
    Guarded.slow = ("/v1/node", "Bearer wrong")
    page = browser.open(f"{server}/console/")
    enter(page, "wrong")
    wait_until(
        lambda: ("/v1/node", "Bearer wrong") in Guarded.asked, what="the request that is slow"
    )
    enter(page, TOKEN)
    page.wait("document.querySelector('tbody .name')?.textContent === 'secret'")
    refused = "performance.getEntriesByType('resource').filter((each) => each.responseStatus === 401 && each.name.endsWith('/v1/node')).length"
    before = page.run(refused)
    Guarded.go_on.set()
    page.wait(f"{refused} > {before}")
    page.run("fetch('/readyz', { cache: 'no-store' }).then((answer) => answer.text())")
    assert not page.run("document.querySelector('#token-dialog').open")
    assert page.run("sessionStorage.getItem('polynya.token')") == TOKEN


def test_a_token_is_asked_for_sent_and_forgotten(browser: Browser, server: str) -> None:
    page = browser.open(f"{server}/console/")
    enter(page, "wrong")
    enter(page, TOKEN)
    page.wait("document.querySelector('tbody .name')?.textContent === 'secret'")
    assert page.run("sessionStorage.getItem('polynya.token')") == TOKEN
    assert (
        page.run("JSON.stringify(localStorage) + document.cookie + location.href").count(TOKEN) == 0
    )

    page.run("location.hash = '#/stream/secret'")
    page.wait("document.querySelectorAll('.record').length === 1")
    page.press("l")
    page.wait("document.querySelector('.state').textContent.includes('The stream is closed')")
    page.wait("document.querySelectorAll('.record').length === 2")
    sent = {target: word for target, word in Guarded.asked if "stream/secret" in target}
    assert len(sent) >= 3 and set(sent.values()) == {f"Bearer {TOKEN}"}, "live events too"

    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.press("c")
    command = page.wait("window.copied")
    assert "$POLYNYA_TOKEN" in command and TOKEN not in command

    page.run(
        "document.querySelector('#token').click(); document.querySelector('#token-forget').click()"
    )
    page.wait("document.querySelector('#token-dialog').open")
    assert page.run("sessionStorage.getItem('polynya.token')") is None
    page.run("document.querySelector('#token-dialog').close()")
    before = len(Guarded.asked)
    page.run("location.hash = '#/streams'")
    page.wait("document.querySelector('#content').textContent.includes('a token is needed')")
    wait_until(lambda: len(Guarded.asked) > before + 1, what="the list to be asked for again")
    assert not page.run("document.querySelector('#token-dialog').open"), (
        "who closed it is left alone"
    )


def test_a_node_shows_what_the_token_may_read(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(data, "--cores", "1", "--auth-required") as node:
        root, reader = (
            polynya("token", "create", name, "--allow", scope, "--data", str(data)).out.strip()
            for name, scope in (("root", "all,admin"), ("reader", "read:orders/"))
        )
        with httpx.Client(
            base_url=node.url, headers={"Authorization": f"Bearer {root}"}, timeout=60
        ) as web:
            for token in (root, reader):
                known = {"Authorization": f"Bearer {token}"}
                wait_until(
                    lambda known=known: web.get("/v1/streams", headers=known).status_code == 200,
                    what="the tokens to be known",
                )
            for name in ("orders/1", "salaries/1"):
                assert (
                    web.put(
                        f"/v1/stream/{name}", headers={"Content-Type": "application/json"}
                    ).status_code
                    == 201
                )
                web.post(
                    f"/v1/stream/{name}",
                    json=[{"n": 1}],
                    headers={"Content-Type": "application/json"},
                )
                web.put(f"/v1/tables/{name.split('/')[0]}", json={"prefix": name[:-1]})
        page = browser.open(f"{node.url}/console/")
        enter(page, reader)
        page.wait("document.querySelector('tbody .name')?.textContent === 'orders/1'")
        assert page.run("document.querySelectorAll('tbody tr').length") == 1
        page.run("location.hash = '#/tables'")
        page.wait("document.querySelector('.tables tbody .name')?.textContent === 'orders'")
        assert page.run("document.querySelectorAll('tbody tr').length") == 1
        page.run("location.hash = '#/sql?q=select * from salaries'")
        page.wait(
            "document.querySelector('#sql-state').textContent.includes(\"no table 'salaries'\")"
        )
        page.run("location.hash = '#/stream/salaries/1'")
        page.wait("document.querySelector('.state.wrong') !== null")
        page.run("location.hash = '#/health'")
        page.wait(
            "document.querySelector('#content').textContent.includes('This token has no access')"
        )
        page.run("location.hash = '#/stream/orders/1'")
        page.wait("document.querySelectorAll('.record').length === 1")
        page.press("l")
        page.wait("document.querySelector('.state').textContent.includes('Live')")
