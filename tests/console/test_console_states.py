"""The snapshots of a stream and the reducers in the console: shown, published, computed, deleted."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from chromium import Browser, Page, browser
from product import RunningNode, running_node
from worlds.console_acts import act, fill, go, open_act, perform, wait_text

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture

JSON = {"Content-Type": "application/json"}
ROWS = (
    "[...document.querySelectorAll('tbody tr')].map((row) => "
    "[...row.children].slice(0, 6).map((cell) => cell.textContent).join('|'))"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("states") / "data", "--cores", "1") as node:
        yield node


@pytest.fixture
def page(browser: Browser, node: RunningNode) -> Iterator[Page]:
    page = browser.open(f"{node.url}/console/")
    page.size(1280, 900)
    yield page
    page.call("Page.close")


def test_snapshots_are_published_shown_and_deleted(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/docs/novel"
    httpx.put(stream, headers=JSON, timeout=60)
    httpx.post(stream, json=[{"line": n} for n in range(8)], headers=JSON, timeout=60)
    go(page, "stream/docs/novel")
    page.wait("document.querySelector('a[href=\"#/snapshots/docs/novel\"]') !== null")
    go(page, "snapshots/docs/novel")
    wait_text(page, ".state", "The stream has no snapshots yet")
    command = act(page, "Publish", record="5", text='{"lines": 5, "big": 12345678901234567890123}')
    assert command.startswith("curl -s -X PUT"), "the offset of a record in the middle has no token"
    assert f"{stream}/snapshot?record=5" in command
    open_act(page, "Publish")
    fill(page, text='{"lines": 8')
    wait_text(page, ".act-dialog .wrong", "No valid JSON")
    fill(page, text='{"lines": 8}')
    command = page.run("document.querySelector('.act-dialog .same code').textContent")
    assert "| polynya snapshot publish docs/novel 0000000000000008_" in command
    perform(page)
    first = "8|0|12 B|application/json|clients|newest"
    page.wait(f"{ROWS}.join() === '{first},5|3|44 B|application/json|clients|kept'")
    page.run("document.querySelectorAll('tbody .link')[1].click()")
    wait_text(page, ".tree", "12345678901234567890123")
    wait_text(page, ".about", "sha-256")
    page.press("Escape")
    act(page, "Delete", typed="8")
    page.wait(f"{ROWS}.length === 1")
    wait_text(page, "tbody", "newest")
    assert len(httpx.get(f"{stream}/snapshots", timeout=60).json()["snapshots"]) == 1


def test_a_reducer_is_added_changed_verified_and_removed(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/carts/ann"
    httpx.put(stream, headers=JSON, timeout=60)
    items = [{"item": "fig", "n": 1}, {"item": "pear", "n": 2}, {"item": "fig", "n": 3}]
    httpx.post(stream, json=items, headers=JSON, timeout=60)
    go(page, "snapshots/carts/ann")
    page.wait("document.querySelector('.page button[title^=\"The state\"]') !== null")
    page.run("document.querySelector('.page button[title^=\"The state\"]').click()")
    wait_text(page, ".state.wrong", "No reducer is bound to this stream")
    go(page, "reducers")
    wait_text(page, "#content", "There are no reducers yet")
    command = act(page, "Add", name="carts", pattern="carts/*", key="/item")
    assert command == (
        f"polynya reduce add carts --pattern 'carts/*' --builtin latest --key /item --server {node.url}"
    )
    wait_text(page, "tbody", "latest by /item")
    open_act(page, "Verify")
    fill(page, stream="carts/ann")
    perform(page)
    wait_text(page, ".act-dialog .wrong", "no snapshot of 'carts' can be computed again")
    page.run("document.querySelector('.act-dialog').close()")
    act(page, "Change", records="500", retain=True)
    wait_text(page, "tbody", "500 records")
    known = httpx.get(f"{node.url}/v1/reducers/carts", timeout=60).json()
    assert (known["every_records"], known["retain"], known["revision"]) == (500, True, 1)
    go(page, "snapshots/carts/ann")
    page.wait("document.querySelector('.page button[title^=\"The state\"]') !== null")
    page.run("document.querySelector('.page button[title^=\"The state\"]').click()")
    wait_text(page, ".tree", "fig: { 2 fields }")
    wait_text(page, ".about", "carts@1")
    go(page, "reducers")
    act(page, "Remove", typed="carts")
    wait_text(page, "#content", "There are no reducers yet")
