"""The console in a headless Chromium, over a running node: a person's view and actions, and the
limits of hostile streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from chromium import Browser, Page, browser
from free_ports import free_ports
from polling import wait_until
from product import RunningNode, running_node
from worlds.steady_node import two_free_ports

from polynya import __version__

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

JSON = {"Content-Type": "application/json"}
EVIL = "<img src=x onerror=window.pwned=1>"
EVIL_RECORD = {
    "<script>window.pwned=2</script>": '<img src=x onerror="window.pwned=3">',
    "turned": "\u202egpj.exe",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(
        tmp_path_factory.mktemp("console") / "data", "--cores", "2", "--kafka-listen", "127.0.0.1:0"
    ) as node:
        with httpx.Client(base_url=f"{node.url}/v1/stream/", timeout=60) as web:
            for number in range(60):
                web.put(f"many/{number:02}", headers=JSON)
            web.put("orders", headers=JSON)
            web.post(
                "orders",
                content=b'[{"item":7,"price":1.50},{"big":12345678901234567890123}]',
                headers=JSON,
            )
            web.post("orders", json=[{"n": number} for number in range(2, 250)], headers=JSON)
            web.put(quote(EVIL), headers=JSON)
            web.post(quote(EVIL), json=EVIL_RECORD, headers=JSON)
            web.put("logs/web", headers={"Content-Type": "text/plain"})
            for number in range(40):
                web.post(
                    "logs/web",
                    content=f"line {number}\n".encode(),
                    headers={"Content-Type": "text/plain"},
                )
            web.put("blobs/x", headers={"Content-Type": "application/octet-stream"})
            web.post(
                "blobs/x",
                content=bytes(range(256)),
                headers={"Content-Type": "application/octet-stream"},
            )
            web.post(
                "blobs/x",
                content=b"\0" * 100_000,
                headers={"Content-Type": "application/octet-stream"},
            )
        yield node


@pytest.fixture(scope="module")
def kafka_node(node: RunningNode) -> RunningNode:
    """Return the node, with two topics and a group."""
    with httpx.Client(base_url=node.url, timeout=60) as web:
        web.put("/v1/topics/till", json={"partitions": 2}).raise_for_status()
        web.put("/v1/topics/taken", json={"streams": ["logs/web"]}).raise_for_status()
        body = {"to": 10, "topics": ["taken"]}
        web.post("/v1/groups/readers/offsets", json=body).raise_for_status()
    return node


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """Open the console of a node. At the end the page has complained of nothing."""
    page = browser.open(f"{url}/console")
    page.size(1200, 800)
    page.wait("document.querySelector('#title') !== null")
    yield page
    complaints = ("Security", "Refused", "Error")
    assert not [line for line in page.log if any(word in line for word in complaints)], page.log
    page.call("Page.close")


@pytest.fixture
def page(browser: Browser, node: RunningNode) -> Iterator[Page]:
    """A page of the console that nothing hostile has touched at the end."""
    with opened(browser, node.url) as page:
        yield page
        assert page.run("window.pwned") is None


def go(page: Page, hash_: str) -> None:
    page.run(f"location.hash = {json.dumps(hash_)}")


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)"
    )
    return found


def wait_text(page: Page, selector: str, words: str) -> None:
    page.wait(
        f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(words)})"
    )


def fill(page: Page, selector: str, text: str) -> None:
    page.run(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = "
        f"{json.dumps(text)};"
        " field.dispatchEvent(new Event('input', { bubbles: true })); "
        "field.form?.requestSubmit(); })()"
    )


def test_streams_are_listed_searched_and_paged(page: Page) -> None:
    page.wait("document.querySelectorAll('tbody tr').length === 50")
    assert EVIL in texts(page, "tbody .name"), "a name is text, whatever it spells"
    page.press("n")
    page.wait("location.hash.includes('after=')")
    page.wait(
        "document.querySelectorAll('tbody tr').length > 5 && document.querySelectorAll('tbody "
        "tr').length < 50"
    )
    page.press("p")
    page.wait(
        "!location.hash.includes('after=') && document.querySelectorAll('tbody tr').length === 50"
    )
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    fill(page, "#search", "many/5")
    page.wait("document.querySelectorAll('tbody tr').length === 10")
    assert texts(page, "tbody .name") == [f"many/5{number}" for number in range(10)]
    fill(page, "#search", "nothing-like-that")
    wait_text(page, "#content", "No stream name starts with")


@pytest.mark.long
def test_rates_are_seen_while_streams_grow(page: Page, node: RunningNode) -> None:
    go(page, "#/streams?prefix=many/59")
    page.wait("document.querySelectorAll('tbody tr').length === 1")

    def append() -> Any:
        httpx.post(f"{node.url}/v1/stream/many/59", json=[1] * 20, headers=JSON, timeout=60)
        return page.run("document.querySelector('.rate.busy')?.textContent.endsWith('/s')")

    wait_until(append, what="a rate", seconds=60)
    page.wait("document.querySelector('.spark .line') !== null")


@pytest.mark.long
def test_keys_lead_from_a_row_to_its_stream_and_back(page: Page) -> None:
    go(page, "#/streams?prefix=orders")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    page.press("j")
    assert page.run("document.activeElement.textContent") == "orders"
    page.run("document.activeElement.click()")
    page.wait("document.querySelectorAll('.record').length === 100")
    page.press("j")
    page.press("j")
    page.press("k")
    page.run("document.activeElement.click()")
    page.wait("!document.querySelector('.pane').hidden")
    page.press("Escape")
    page.wait("document.querySelector('.pane').hidden")
    page.press("Escape")
    page.wait("location.hash === '#/streams'")
    page.press("g")
    page.press("h")
    page.wait("location.hash === '#/health'")
    page.press("?")
    page.wait("document.querySelector('#help-dialog').open")


def test_a_records_numbers_are_not_rounded_and_places_are_found(
    page: Page, node: RunningNode
) -> None:
    go(page, "#/stream/orders")
    page.wait("document.querySelectorAll('.record').length === 100")
    assert texts(page, ".record .at")[0::99] == ["150", "249"], "the newest ones first of all"
    fill(page, "#place", "0")
    page.wait("document.querySelector('.record .at').textContent === '0'")
    wait_text(page, ".state", "Offsets 0 to 99 of 0 to 249")
    page.run("document.querySelectorAll('.record')[1].click()")
    wait_text(page, ".tree", "12345678901234567890123")
    wait_text(page, ".pane h2", "Offset 1")
    page.press("2")
    assert texts(page, ".record-body") == ['{"big":12345678901234567890123}']
    page.press("3")
    wait_text(page, ".hex-view", "7b 22 62 69 67 22 3a")
    page.press("1")
    page.press("n")
    page.wait("document.querySelector('.record .at').textContent === '100'")
    fill(page, "#place", "-3")
    page.wait("document.querySelectorAll('.record').length === 3")
    fill(page, "#place", "1h")
    page.wait("document.querySelector('.record .at').textContent === '0'")
    fill(page, "#place", "9999")
    wait_text(page, ".state.wrong", "offset lies beyond the tail")
    fill(page, "#place", "gibberish")
    wait_text(page, ".state.wrong", "Type an offset (the first is 0)")


def test_what_a_hostile_stream_says_is_text(page: Page) -> None:
    go(page, f"#/stream/{quote(EVIL)}")
    page.wait("document.querySelectorAll('.record').length === 1")
    assert texts(page, "h1") == [EVIL]
    page.run("document.querySelector('.record').click()")
    wait_text(page, ".tree", "<script>window.pwned=2</script>: <img src=x")
    assert "\\u202egpj.exe" in texts(page, ".tree")[0], "what turns text around is shown"
    assert page.run("document.querySelectorAll('main img, main script').length") == 0
    assert EVIL in page.run("document.title")


@pytest.mark.long
def test_markup_cannot_be_made_of_text_even_by_mistake(page: Page) -> None:
    tried = page.run(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made' } catch (error) { "
        "return error.name } })()"
    )
    assert tried == "TypeError"
    page.log.clear()  # the browser says that it refused


def test_a_page_that_a_stream_holds_is_not_of_this_origin(
    browser: Browser, node: RunningNode
) -> None:
    """Deny the console's origin to stored HTML: a record that is opened as a page must not read
    the tab's token."""
    for kind, name in (
        ("text/html", "pages/html"),
        ("image/svg+xml", "pages/svg"),
        ("application/xhtml+xml", "pages/xhtml"),
    ):
        httpx.put(f"{node.url}/v1/stream/{name}", headers={"Content-Type": kind}, timeout=60)
        script = "<script>document.documentElement.setAttribute('class', 'pwned')</script>"
        body = {
            "text/html": f"<p>hello</p>{script}",
            "image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg">{script}</svg>',
            "application/xhtml+xml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{script}</body></html>',
        }[kind]
        httpx.post(
            f"{node.url}/v1/stream/{name}", content=body, headers={"Content-Type": kind}, timeout=60
        )
        page = browser.open(f"{node.url}/v1/stream/{name}")
        assert page.run("document.documentElement.getAttribute('class')") is None, kind
        assert page.run("self.origin") == "null", kind
        page.call("Page.close")


def test_a_stream_is_followed_paused_and_ends(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/live/one"
    httpx.put(stream, headers=JSON, timeout=60)
    httpx.post(stream, json=[{"n": 0}], headers=JSON, timeout=60)
    go(page, "#/stream/live/one")
    page.wait("document.querySelectorAll('.record').length === 1")
    page.press("l")
    wait_text(page, ".state", "Live")
    httpx.post(stream, content=b'[{"n":1.50},\n{"n":2}]', headers=JSON, timeout=60)
    page.wait("document.querySelectorAll('.record').length === 3")
    assert texts(page, ".record .at") == ["0", "1", "2"]
    assert texts(page, ".record .preview")[1] == '{"n":1.50}'
    page.press(" ")
    wait_text(page, ".state", "Paused")
    httpx.post(stream, json=[{"n": 3}], headers=JSON, timeout=60)
    wait_text(page, ".state", "1 on hold")
    assert len(texts(page, ".record")) == 3
    page.press(" ")
    page.wait("document.querySelectorAll('.record').length === 4")
    for begin in range(0, 3000, 500):
        httpx.post(stream, json=list(range(begin, begin + 500)), headers=JSON, timeout=60)
    page.wait("document.querySelector('.records li:last-child .at')?.textContent === '3003'")
    assert len(texts(page, ".record")) == 500, "the oldest rows go"
    httpx.post(stream, headers={"Stream-Closed": "true"}, timeout=60)
    wait_text(page, ".state", "The stream is closed")


@pytest.mark.long
def test_a_deleted_stream_ends_what_follows_it(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/live/gone"
    httpx.put(stream, headers=JSON, timeout=60)
    go(page, "#/stream/live/gone")
    wait_text(page, ".state", "The stream has no records yet")
    page.press("l")
    wait_text(page, ".state", "Live")
    httpx.delete(stream, timeout=60)
    wait_text(page, ".state", "Stopped following")
    go(page, "#/stream/live/never")
    wait_text(page, ".state", "does not exist")


def test_questions_are_asked_and_answered(page: Page) -> None:
    question = "select 9007199254740993 as big, '<b>x</b>' as html, null as nothing, [1, 2] as list"
    go(page, f"#/sql?q={quote(question)}")
    page.wait("!document.querySelector('#result').hidden")
    assert texts(page, "#result td") == ["9007199254740993", "<b>x</b>", "null", "[1, 2]"]
    wait_text(page, "#sql-state", "1 row, in")
    fill(page, "#question", "select * from read_text('/etc/passwd')")
    page.run("document.querySelector('#run').click()")
    wait_text(page, "#sql-state.wrong", "read_text is not allowed")


def test_tables_and_health_are_shown(page: Page, node: RunningNode) -> None:
    httpx.put(f"{node.url}/v1/tables/orders", json={"prefix": "orders"}, timeout=60)
    go(page, "#/tables")
    wait_text(page, "tbody", "orders")
    page.press("j")
    page.run("document.activeElement.click()")
    wait_text(page, "#content", "polynya table sync orders")
    go(page, "#/health")
    wait_text(page, ".verdict", "Ready")
    page.wait("document.querySelectorAll('.metrics tbody tr').length > 30")
    fill(page, "#metric", "journal_disk")
    page.wait("document.querySelectorAll('.metrics tbody tr').length === 1")


def test_costs_are_shown_with_a_chart(page: Page, node: RunningNode) -> None:
    go(page, "#/costs")
    page.wait("document.querySelectorAll('.numbers .money dd').length === 3")
    amounts = texts(page, ".numbers .money dd")
    assert all(amount.endswith(" USD") for amount in amounts), amounts
    assert page.run("document.querySelectorAll('.lines path').length") == 4
    assert page.run("document.querySelector('.lines').getAttribute('aria-label')")
    page.wait("document.querySelectorAll('tbody tr').length >= 2")
    assert "other" in texts(page, "tbody td"), "the claim of the store's root"
    page.run("document.querySelectorAll('.head .small')[1].click()")
    page.wait("location.hash === '#/costs?hours=168'")

    def led_there() -> bool:  # the second key counts for 1.2 s only
        page.press("g")
        page.press("c")
        return bool(page.run("location.hash === '#/costs'"))

    wait_until(led_there, what="the keys to lead to the costs")


@pytest.mark.usefixtures("kafka_node")
def test_topics_and_groups_are_shown_with_their_lag(page: Page) -> None:
    go(page, "#/kafka")
    page.wait("document.querySelectorAll('tbody tr').length === 3")
    page.wait("document.querySelector('tbody:last-of-type tr') !== null")
    page.wait("[...document.querySelectorAll('td')].some((each) => each.textContent === '30')")
    assert [sorted(texts(page, "tbody .name"))] == [["readers", "taken", "till"]]
    for _ in range(3):
        page.press("j")
    assert page.run("document.activeElement.textContent") == "readers"
    page.run("document.activeElement.click()")
    wait_text(page, ".numbers", "Empty")
    page.wait("document.querySelectorAll('.tables tbody tr').length === 1")
    cells = texts(page, ".tables tbody td")
    assert cells == ["0", "10", "40", "30", "–"]
    assert page.run("document.querySelector('tbody a').hash") == "#/stream/logs%2Fweb"
    page.press("Escape")
    page.wait("location.hash === '#/kafka'")


def test_the_nodes_of_a_cluster_are_shown(browser: Browser, tmp_path: Path) -> None:
    member = f"1=127.0.0.1:{free_ports(1)[0]}=http://127.0.0.1:4437=east"
    flags = (
        "--cluster-id",
        "ab" * 16,
        "--cluster-node",
        "1",
        "--cluster-nodes",
        member,
        "--cold-backend",
        "none",
        "--cores",
        "1",
    )
    with running_node(tmp_path / "data", *flags) as one:
        page = browser.open(f"{one.url}/console/#/overview")
        page.wait("document.querySelectorAll('.map-row').length === 1")
        page.wait("document.querySelectorAll('.map-cells .cell.leads').length === 17")
        go(page, "#/health")
        page.wait("document.querySelectorAll('.nodes tbody tr').length === 1")
        page.wait("document.querySelector('.nodes tbody td:nth-child(6)').textContent === '17'")
        assert texts(page, ".nodes tbody td") == [
            "1 (this node)",
            "http://127.0.0.1:4437",
            "east",
            "up",
            __version__,
            "17",
            "17",
        ]
        page.call("Page.close")


@pytest.mark.long
def test_light_and_dark(page: Page) -> None:
    def ground() -> str:
        return str(page.run("getComputedStyle(document.documentElement).backgroundColor"))

    light = ground()
    page.size(1200, 800, dark=True)
    dark = ground()
    assert light != dark
    page.press("t")
    assert ground() == light
    page.press("t")
    assert ground() == dark
    page.run("localStorage.clear()")


def test_the_overview_shows_what_needs_attention_and_the_last_hours(
    page: Page, node: RunningNode
) -> None:
    go(page, "#/overview")
    page.wait("document.querySelectorAll('.trend').length > 8")
    wait_text(page, ".verdict", "Healthy")
    wait_text(page, ".attention", "Nothing needs attention")
    page.wait("document.querySelectorAll('.cards .card').length === 5")

    def append() -> Any:
        httpx.post(f"{node.url}/v1/stream/many/58", json=[1] * 20, headers=JSON, timeout=60)
        return page.run("document.querySelector('tbody .name')?.textContent === 'many/58'")

    wait_until(append, what="the busiest stream")
    recent = httpx.get(f"{node.url}/v1/node/recent", timeout=60).json()
    assert set(recent) == {"step_seconds", "times_ms", "series"}


PATHS = (
    "overview",
    "streams",
    "stream/orders?at=1",
    f"stream/{quote(EVIL)}",
    "records?of=orders",
    "tables",
    "table/orders",
    "kafka",
    "topic/till",
    "group/readers",
    "schemas",
    "subscriptions",
    "access",
    "sql",
    "costs",
    "health",
)


@pytest.mark.usefixtures("kafka_node")
def test_it_fits_a_phone_and_everything_has_a_name(page: Page) -> None:
    page.size(360, 740, mobile=True)
    for path in PATHS:
        page.run("document.querySelector('#content').replaceChildren()")
        go(page, f"#/{path}")
        page.wait("document.querySelector('#title') !== null")
        shown = "tbody tr, .record, .numbers div, textarea, .quiet:not([hidden])"
        page.wait(f"document.querySelector('{shown}') !== null")
        assert page.run("document.documentElement.scrollWidth") <= 360, path
        named = (
            "each.getAttribute('aria-label') || each.textContent.trim() || "
            "each.labels?.[0]?.textContent.trim()"
        )
        nameless = page.run(
            "[...document.querySelectorAll('a, button, input, textarea')].filter((each) => "
            f"!({named})).map((each) => each.outerHTML)"
        )
        assert nameless == [], path


def test_each_figure_of_the_health_page_is_in_sight_on_a_phone(page: Page) -> None:
    page.size(360, 740, mobile=True)
    go(page, "#/health")
    page.wait("document.querySelectorAll('.metrics tbody tr').length > 100")
    cells = "[...document.querySelectorAll('.metrics tbody tr > *')]"
    wide = f"{cells}.filter((each) => each.getBoundingClientRect().right > 360)"
    assert page.run(f"{wide}.map((each) => each.textContent)") == []


def test_the_address_is_the_place(
    page: Page, browser: Browser, node: RunningNode, tmp_path: Path
) -> None:
    go(page, "#/stream/orders?at=7")
    page.wait("document.querySelector('.record .at')?.textContent === '7'")
    again = browser.open(page.run("location.href"))
    again.wait("document.querySelector('.record .at')?.textContent === '7'")
    again.call("Page.close")
    go(page, "#/stream/..%2F..%2Fhealth")
    wait_text(page, ".state.wrong", "no empty, '.' or '..' segments")
    go(page, "#/nowhere/%E0")
    wait_text(page, "#content", "Page not found")


def test_the_nodes_address_leads_to_the_console(page: Page, node: RunningNode) -> None:
    page.go(node.url)
    page.wait("location.pathname === '/console/' && document.querySelector('#title') !== null")
    assert httpx.post(node.url, content=b"x", timeout=60).status_code == 404


@pytest.mark.long
def test_where_nothing_is_there_is_nothing_to_press(page: Page) -> None:
    go(page, "#/stream/no/such")
    wait_text(page, ".state.wrong", "does not exist")
    assert page.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    go(page, "#/streams?prefix=many/0")
    page.wait("document.querySelectorAll('tbody tr').length === 10")
    assert page.run("document.querySelector('.pager').hidden"), "there is one page"
    page.log.clear()  # the 404 above


@pytest.mark.long
def test_the_newest_records_are_in_sight_when_a_stream_is_opened(page: Page) -> None:
    go(page, "#/stream/orders")
    page.wait("document.querySelectorAll('.record').length === 100")
    page.wait(
        "(() => { const last = "
        "[...document.querySelectorAll('.record')].at(-1).getBoundingClientRect();"
        " return last.bottom <= "
        "document.querySelector('.records').parentElement.getBoundingClientRect().bottom + 1; })()"
    )


def test_a_console_that_did_not_load_completely_says_so_and_is_reloaded(
    browser: Browser, node: RunningNode
) -> None:
    page = browser.open()
    page.call("Network.enable")
    page.call("Network.setBlockedURLs", urls=["*/streams.js"])
    page.go(f"{node.url}/console#/sql")
    wait_text(page, "#incomplete:not([hidden])", "The console did not load completely")
    page.call("Network.setBlockedURLs", urls=[])
    page.run("document.querySelector('#reload').click()")
    page.wait("document.querySelector('#sql-state') !== null")
    page.call("Page.close")


def test_a_node_that_went_away_is_said_in_words_until_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{two_free_ports()}"
    with running_node(tmp_path / "data", "--listen", listen) as node:
        page = browser.open(f"{node.url}/console")
        wait_text(page, ".quiet", "There are no streams yet")
        assert page.run("getComputedStyle(document.querySelector('thead')).display") == "none"
        go(page, "#/sql")
        wait_text(page, "#sql-state", "There are no tables yet")
        go(page, "#/health")
        wait_text(page, ".numbers", "(")  # the commit
        httpx.put(f"{node.url}/v1/stream/orders", headers=JSON, content=b"[1,2,3]", timeout=60)
        go(page, "#/streams")
        wait_text(page, "tbody", "orders")
    wait_text(page, ".quiet:not([hidden])", "cannot be listed: the node does not respond. Retrying")
    wait_text(page, "#status", "down")
    go(page, "#/health")
    wait_text(page, ".state", "cannot be read: the node does not respond. Retrying")
    assert texts(page, ".verdict") == ["Down"], "no verdict of an earlier moment"
    go(page, "#/sql")
    wait_text(page, "#sql-state.wrong", "The tables cannot be listed: the node does not respond")
    go(page, "#/table/orders")
    wait_text(page, ".state.wrong", "The table cannot be read: the node does not respond. Retrying")
    go(page, "#/stream/orders")
    wait_text(page, ".state.wrong", "cannot be read: the node does not respond. Retrying")
    with running_node(tmp_path / "data", "--listen", listen):
        wait_text(page, ".state:not(.wrong)", "Offsets 0 to 2 of 0 to 2")
        page.wait("document.querySelector('#status').dataset.state === 'ready'")
    wait_text(page, ".state.wrong", "cannot be read")
    with running_node(tmp_path / "data", "--listen", listen):
        wait_text(page, ".state:not(.wrong)", "Offsets 0 to 2 of 0 to 2")
    page.call("Page.close")
