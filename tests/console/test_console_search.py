"""The record browser over many streams, and the SQL page's history, plan, chart and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from chromium import Browser, Page, browser
from product import RunningNode, running_node
from test_console_browser import fill, go, opened, texts, wait_text

from polynya.wire.headers import RECORDS

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

EVIL = "runs/<img src=x onerror=window.pwned=1>"
WHOLE = {"Content-Type": RECORDS}
ASK = "select * from (values ('a', 1, 1.5), ('<b>b</b>', -2, null)) v(name, n, m)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Run a node with records in turns: runs/1, runs/2, runs/1, … and one more in EVIL."""
    with running_node(tmp_path_factory.mktemp("search") / "data", "--cores", "1") as node:
        with httpx.Client(base_url=f"{node.url}/v1/", timeout=60) as web:
            for name, kind in (
                ("runs/1", "application/json"),
                ("runs/2", "text/plain"),
                ("runs/2/log", "text/plain"),
                (quote(EVIL), "application/json"),
            ):
                web.put(f"stream/{name}", headers={"Content-Type": kind}).raise_for_status()
            for turn in range(4):
                numbers = range(turn * 20, turn * 20 + 20)
                for name in ("1", "2"):
                    values = [{"n": at} if name == "1" else json.dumps({"n": at}) for at in numbers]
                    body = [
                        {"key": f"k{at}", "value": value, "headers": [["turn", str(turn)]]}
                        for at, value in zip(numbers, values, strict=True)
                    ]
                    web.post(f"stream/runs/{name}", json=body, headers=WHOLE).raise_for_status()
            web.post("stream/runs/2/log", content=b"a line", headers={"Content-Type": "text/plain"})
            web.post(f"stream/{quote(EVIL)}", json={"html": "<b>x</b>"}).raise_for_status()
            web.put("tables/runs_table", json={"prefix": "runs"}).raise_for_status()
        yield node


@pytest.fixture
def page(browser: Browser, node: RunningNode) -> Iterator[Page]:
    with opened(browser, node.url) as page:
        page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        yield page
        assert page.run("window.pwned") is None


def count_rows(page: Page, count: int) -> None:
    page.wait(f"document.querySelectorAll('.record').length === {count}")


def rows(page: Page) -> list[tuple[str, int]]:
    """Return the stream and the offset of each row."""
    offsets = map(int, texts(page, ".record .at"))
    return list(zip(texts(page, ".record .origin"), offsets, strict=True))


def append_times(node: RunningNode) -> dict[tuple[str, int], int]:
    """Return the append time of each stored record by its stream and offset."""
    found = {}
    for name in ("runs/1", "runs/2", "runs/2/log", EVIL):
        path = f"{node.url}/v1/stream/{quote(name)}"
        for record in httpx.get(path, headers={"Accept": RECORDS}, timeout=60).json():
            found[(name, record["offset"])] = record["append_time"]
    return found


def test_records_of_many_streams_are_shown_the_newest_first(page: Page, node: RunningNode) -> None:
    go(page, "#/streams?prefix=runs")
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    page.run("document.querySelector('.head a.button').click()")
    count_rows(page, 100)
    wait_text(page, ".state", "100 records of 4 streams")
    assert EVIL in texts(page, ".record .origin"), "a name is text, whatever it spells"
    seen = rows(page)
    page.press("p")
    count_rows(page, 62)
    wait_text(page, ".state", "There are no older ones")
    seen += rows(page)
    stored = append_times(node)
    assert sorted(seen) == sorted(stored)
    times = [stored[row] for row in seen]
    assert times == sorted(times, reverse=True)
    assert [at for name, at in seen if name == "runs/1"] == [*range(79, -1, -1)]
    page.run(
        "[...document.querySelectorAll('.record')].find((each) => "
        "each.querySelector('.origin').textContent === 'runs/1' && "
        "each.querySelector('.at').textContent === '0').click()"
    )
    wait_text(page, ".pane h2", "runs/1 offset 0")
    page.press("x")
    assert "polynya read runs/1 --offset" in page.wait("window.copied")
    page.run("document.querySelector('.pane h2 a').click()")
    page.wait("location.hash === '#/stream/runs/1?at=0'")


def test_records_are_found_by_key_path_text_and_time(page: Page) -> None:
    go(page, f"#/records?kind=pattern&of={quote('runs/*')}&where={quote('$.n>=78')}")
    count_rows(page, 4)
    assert sorted(texts(page, ".record .origin")) == ["runs/1", "runs/1", "runs/2", "runs/2"]
    wait_text(page, ".state", "4 records of 3 streams")
    fill(page, "#by-key", "79")
    count_rows(page, 2)
    page.wait("location.hash.includes('key=79')")
    fill(page, "#by-until", "1h")
    wait_text(page, ".state", "0 records of 3 streams")
    fill(page, "#by-until", "")
    fill(page, "#by-since", "1h")
    count_rows(page, 2)
    fill(page, "#by-where", "n=7")
    wait_text(page, ".state.wrong", "the JSON path is not understood: write a path and a value")
    go(page, f"#/records?kind=list&of={quote('runs/2 runs/9')}&text={quote('turn: 3')}")
    count_rows(page, 20)
    wait_text(page, ".state", "Not readable: runs/9")
    page.log.clear()  # the 404 of runs/9


def test_a_result_is_drawn_and_saved(page: Page) -> None:
    page.run(
        "HTMLAnchorElement.prototype.click = () => {}; "
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text }); "
        "return 'blob:x' }"
    )
    go(page, f"#/sql?q={quote(ASK)}")
    wait_text(page, "#sql-state", "2 rows, in")
    page.run("document.querySelector('#chart').click()")
    page.wait("document.querySelectorAll('#figure rect').length === 3")
    assert texts(page, "#figure .bar-label") == ["a", "<b>b</b>"]
    page.run("document.querySelector('#csv').click()")
    assert page.wait("window.saved") == "name,n,m\r\na,1,1.5\r\n<b>b</b>,-2,\r\n"
    page.run("window.saved = ''; document.querySelector('#json').click()")
    assert json.loads(page.wait("window.saved"))[1] == {"name": "<b>b</b>", "n": -2, "m": None}


def test_plans_history_and_completion(page: Page) -> None:
    page.run("localStorage.clear()")
    go(page, "#/sql")
    wait_text(page, ".chips", "runs_table")
    fill(page, "#question", "select i from range(9) r(i) where i > 5")
    page.run("document.querySelector('#plan').click()")
    wait_text(page, "#result .plan", "RANGE")
    wait_text(page, "#history summary", "History (1)")
    fill(page, "#question", "select * from run")
    wait_text(page, "#suggested", "runs_table")
    page.run("document.querySelector('#suggested button').click()")
    assert page.run("document.querySelector('#question').value") == "select * from runs_table"
    page.run("document.querySelector('.past').click()")
    assert page.run("document.querySelector('#question').value").endswith("where i > 5")
    page.run("document.querySelector('#clear-history').click()")
    page.wait("document.querySelector('#history').hidden")
    assert page.run("localStorage.getItem('polynya.queries')") is None
