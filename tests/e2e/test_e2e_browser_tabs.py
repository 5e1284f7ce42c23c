"""Eight tabs of one site with ten event streams each, in headless Chromium over HTTP/2."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

import httpx
import pytest
from chromium import Browser, Page, running_browser
from missing import needed
from polling import wait_until
from product import RunningNode, polynya, running_node

from polynya.client import Client

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TABS, STREAMS, RECORDS = 8, 10, 12
# what a page keeps over a reload: the values that it has shown, and the id of its last event
FOLLOW = """
(token, prefix, count) => {
  window.sources = Array.from({ length: count }, (_, number) => {
    const name = `${prefix}${number}`
    const kept = JSON.parse(sessionStorage.getItem(name) ?? '{"values": [], "last": "-1"}')
    const query = new URLSearchParams({ live: "sse", offset: kept.last, access_token: token })
    const source = new EventSource(`/v1/stream/${name}?${query}`)
    source.addEventListener("data", (event) => {
      kept.values.push(...JSON.parse(event.data))
      kept.last = event.lastEventId
      sessionStorage.setItem(name, JSON.stringify(kept))
    })
    return source
  })
}
"""
OPEN = "sources.every((source) => source.readyState === EventSource.OPEN)"
VALUES = (
    "Array.from({length: %d}, (_, number) => "
    "JSON.parse(sessionStorage.getItem(`runs/${number}`) ?? '{\"values\": []}').values)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, Client]]:
    """Yield a node with TLS and access control, and the client of the site's server."""
    data = tmp_path_factory.mktemp("tabs") / "data"
    ran = polynya("token", "create", "site", "--allow", "all", "--data", str(data))
    assert ran.code == 0, ran
    with running_node(data, "--cores", "1", "--auth-required", "--tls-self") as node:
        trusted = ssl.create_default_context(cafile=data / "tls" / "self.crt")
        with Client(node.url, token=ran.out.strip(), verify=trusted) as client:
            yield node, client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with needed("browser", running_browser("--ignore-certificate-errors")) as started:
        yield started


def follow(page: Page, token: str) -> None:
    page.run(f"({FOLLOW})({token!r}, 'runs/', {STREAMS})")
    page.wait(OPEN)


def values(page: Page) -> list[list[int]]:
    found: list[list[int]] = page.run(VALUES % STREAMS)
    return found


def test_eighty_streams_of_eight_tabs_stay_alive_over_a_reload(
    site: tuple[RunningNode, Client], browser: Browser
) -> None:
    node, client = site
    streams = [client.stream(f"runs/{number}") for number in range(STREAMS)]
    for stream in streams:
        stream.create()
    token = client.mint_token(prefix="runs/", expires_in_seconds=600).token
    tabs = [browser.open(f"{node.url}/livez") for _ in range(TABS)]
    for tab in tabs:
        follow(tab, token)
    for value in range(RECORDS):
        for stream in streams:
            stream.append(value)
        if value == RECORDS // 2:
            for tab in tabs[::2]:  # in the middle of the events
                tab.go(f"{node.url}/livez")  # which reloads it
                assert tab.run("window.sources === undefined")
                follow(tab, token)
    whole = [list(range(RECORDS))] * STREAMS
    for tab in tabs:
        wait_until(lambda tab=tab: values(tab) == whole, what="all values, each once, in order")
        assert tab.run(OPEN)
        # an eleventh request is not held up
        assert tab.run("fetch('/livez').then((answer) => answer.status)") == 200
        navigation = "performance.getEntriesByType('navigation')[0].nextHopProtocol"
        assert tab.run(navigation) == "h2"
    found = httpx.get(f"{node.admin}/metrics", timeout=60).text
    assert counted(found, "polynya_http2_streams_total") >= TABS * STREAMS
    assert counted(found, "polynya_http2_connections_total") < TABS
    assert not re.search(r'polynya_http2_refused_total\{reason="\w+"\} [1-9]', found)


def counted(text: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)", text, re.MULTILINE)
    assert found, name
    return int(found[1])
