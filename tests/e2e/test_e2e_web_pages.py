"""Attacks of a foreign web page on a default node: with the requests that browsers send, and in
headless Chromium."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from chromium import Browser, running_browser
from free_ports import free_ports
from missing import needed, needed_program
from product import RunningNode, polynya, running_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

JSON = {"Content-Type": "application/json"}
# httpx's own 5 s are few for a disk that is busy
web = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
RULES = "--host-resolver-rules=MAP evil.test 127.0.0.1"
READ = "fetch(%r).then((answer) => answer.status, (error) => error.name)"
WRITE = "fetch(%r, %s).then((answer) => answer.status, (error) => error.name)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("pages") / "data", "--cores", "1") as node:
        assert web.put(f"{node.url}/v1/stream/secret", headers=JSON).status_code == 201
        assert web.post(f"{node.url}/v1/stream/secret", json=42, headers=JSON).status_code == 204
        yield node


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser in which `evil.test` is this machine."""
    with needed("browser", running_browser(RULES)) as started:
        yield started


@contextmanager
def pages() -> Iterator[int]:
    """Run a web server on the loopback with an empty page until `with` ends; yield its port."""

    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>page</title>")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def streams(node: RunningNode) -> list[str]:
    return [row["name"] for row in web.get(f"{node.url}/v1/streams").json()["streams"]]


def refusals(node: RunningNode) -> int:
    """Count the requests that the base port has answered with 4xx."""
    found = re.search(
        r'^polynya_http_responses_total{class="4xx"} (\d+)',
        web.get(f"{node.admin}/metrics").text,
        re.MULTILINE,
    )
    return int(found[1]) if found else 0


def test_no_page_acts_on_the_cluster_or_the_store(node: RunningNode) -> None:
    act = "/v1/cluster/nodes/2/cordon"
    for port in (node.url, node.admin):
        assert code_of(web.post(port + act, json={}, headers={"Origin": "http://evil.com"})) == (
            403,
            "ORIGIN_NOT_ALLOWED",
        )
        assert code_of(web.post(port + act, json={}, headers={"Host": "evil.com"})) == (
            421,
            "HOST_NOT_ALLOWED",
        )
        assert code_of(
            web.post(f"{port}/v1/admin/flush", headers={"Origin": "http://evil.com"})
        ) == (403, "ORIGIN_NOT_ALLOWED")
        assert code_of(web.post(f"{port}/v1/admin/flush", headers={"Host": "evil.com"})) == (
            421,
            "HOST_NOT_ALLOWED",
        )
        assert web.get(f"{port}/readyz", headers={"Host": "evil.com"}).status_code == 200
    assert code_of(
        web.post(f"{node.admin}/v1/admin/flush", headers={"Origin": "http://localhost:5173"})
    ) == (403, "ORIGIN_NOT_ALLOWED")


def test_the_base_port_names_the_admin_port_for_acts(node: RunningNode) -> None:
    for path in (
        "/v1/cluster/nodes/2/cordon",
        "/v1/cluster/rebalance",
        "/v1/admin/flush",
        "/v1/admin/store/verify",
    ):
        refused = web.post(node.url + path, json={})
        assert code_of(refused) == (403, "ADMIN_PORT_ONLY")
        assert node.admin in refused.json()["error"]["message"]
    assert web.post(f"{node.admin}/v1/admin/flush").status_code == 200
    assert code_of(web.post(f"{node.admin}/v1/cluster/nodes/2/cordon", json={})) == (
        409,
        "CLUSTER_REFUSED",
    ), "it got as far as the cluster"
    assert web.get(f"{node.url}/v1/cluster").status_code == 200


def test_the_command_line_finds_the_admin_port(node: RunningNode) -> None:
    for server in (node.url, node.admin, node.url.replace("127.0.0.1", "localhost")):
        refused = polynya("cluster", "cordon", "2", server=server)
        assert refused.code == 1 and "CLUSTER_REFUSED" in refused.err, refused.err


def test_hosts_of_the_settings_and_of_the_cluster_are_answered(tmp_path: Path) -> None:
    (peer,) = free_ports(1)
    cluster = {
        "POLYNYA_CLUSTER_ID": "0123456789abcdef" * 2,
        "POLYNYA_CLUSTER_NODE": "1",
        "POLYNYA_CLUSTER_NODES": f"1=127.0.0.1:{peer}=http://Node-1.internal:4437",
        "POLYNYA_COLD_BACKEND": "none",
    }
    with running_node(
        tmp_path / "data", "--cores", "1", "--allowed-hosts", "Polynya.internal, other", **cluster
    ) as node:
        for host, status in (
            ("polynya.INTERNAL:4437", 200),
            ("other.", 200),
            ("another", 421),
            ("node-1.internal", 200),
            ("node-2.internal", 421),
        ):
            assert web.get(f"{node.url}/v1/node", headers={"Host": host}).status_code == status, (
                host
            )
        acted = web.post(
            f"{node.admin}/v1/cluster/nodes/1/cordon", json={}, headers={"Host": "node-1.internal"}
        )
        assert acted.status_code in (200, 503), "200, or the cluster has no map yet"


def test_a_page_of_a_foreign_name_neither_reads_nor_writes(
    node: RunningNode, browser: Browser
) -> None:
    before, before_refusals = streams(node), refusals(node)
    with pages() as port:
        page = browser.open(f"http://evil.test:{port}/")
        assert page.run("location.hostname") == "evil.test"
        for base in (node.url, node.url.replace("127.0.0.1", "localhost")):
            assert page.run(READ % f"{base}/v1/stream/secret?offset=-1") == "TypeError"
            assert page.run(WRITE % (f"{base}/v1/stream/made", '{method: "PUT"}')) == "TypeError"
            silent = (
                '{method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body: '
                '"[1]"}'
            )
            assert page.run(WRITE % (f"{base}/v1/stream/secret", silent)) == 0, (
                "the page learns nothing of the answer"
            )
            page.run(WRITE % (f"{base}/v1/cluster/nodes/2/cordon", silent))
        page.run(WRITE % (f"{node.admin}/v1/admin/flush", '{method: "POST", mode: "no-cors"}'))
        page.run(
            "window.source = new "
            f"EventSource({node.url + '/v1/stream/secret?offset=-1&live=sse'!r}); source.onerror "
            "= () => window.failed = true"
        )
        page.wait("window.failed && source.readyState === EventSource.CLOSED")
        page.call("Page.close")
    assert (streams(node), web.get(f"{node.url}/v1/stream/secret?offset=-1").json()) == (
        before,
        [42],
    )
    assert refusals(node) >= before_refusals + 4, "the browser did send what it kept the answers of"


def test_a_page_whose_name_is_rebound_to_the_node_reaches_nothing(
    node: RunningNode, browser: Browser
) -> None:
    port = urlsplit(node.url).port
    before = streams(node)
    page = browser.open(f"http://evil.test:{port}/livez")  # the only thing that it can be served
    assert page.run("origin") == f"http://evil.test:{port}"
    assert page.run(READ % "/v1/stream/secret?offset=-1") == 421
    assert page.run(WRITE % ("/v1/stream/made", '{method: "PUT"}')) == 421
    act = '{method: "POST", headers: {"Content-Type": "application/json"}, body: "{}"}'
    assert page.run(WRITE % ("/v1/cluster/nodes/2/cordon", act)) == 421
    page.call("Page.close")
    admin = browser.open(f"http://evil.test:{urlsplit(node.admin).port}/livez")
    assert admin.run(WRITE % ("/v1/admin/flush", act)) == 421
    admin.call("Page.close")
    assert streams(node) == before


def test_a_development_server_on_another_port_works(node: RunningNode, browser: Browser) -> None:
    with pages() as port:
        page = browser.open(f"http://localhost:{port}/")
        name = f"{node.url}/v1/stream/dev"
        assert (
            page.run(
                WRITE % (name, '{method: "PUT", headers: {"Content-Type": "application/json"}}')
            )
            == 201
        )
        sent = (
            '{method: "POST", headers: {"Content-Type": "application/json", "Producer-Id": "p", '
            '"Producer-Epoch": "0", "Producer-Seq": "0"}, body: "[1,2]"}'
        )
        assert page.run(WRITE % (name, sent)) == 200
        page.run(f"window.got = []; window.source = new EventSource({name + '?offset=-1&live=sse'!r});"
                 " source.addEventListener('data', (event) => got.push(...JSON.parse(event.data)))")  # fmt: skip
        page.wait("got.length === 2")
        headers = (
            f"fetch({name + '?offset=-1'!r}).then(async (answer) => "
            "[answer.headers.get('stream-next-offset'), await answer.json()])"
        )
        offset, records = page.run(headers)
        assert offset and records == [1, 2]
        page.call("Page.close")


def test_curl_works(node: RunningNode) -> None:
    curl = needed_program("curl")

    def run(*words: str) -> str:
        return subprocess.run(
            [curl, "-sS", "--fail-with-body", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    port = urlsplit(node.url).port
    for host in ("127.0.0.1", "localhost"):
        base = f"http://{host}:{port}/v1/stream/curl"
        run("-X", "PUT", *("-H", "Content-Type: application/json"), base)
        run("-H", "Content-Type: application/json", "-d", '{"item": 7}', base)
        assert json.loads(run(f"{base}?offset=-1"))[-1] == {"item": 7}
