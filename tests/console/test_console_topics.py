"""The page of a topic in a headless Chromium: a place to go to, what is copied of a record, and many records
at once. And what the pages about one thing say if there is none."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import httpx
import pytest
from chromium import Browser, Page, browser
from product import RunningNode, polynya, running_node
from worlds.console_acts import act, fill, go, open_act, wait_text

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture

POSITIONS = (
    "[...document.querySelectorAll('.record .at')].map((each) => each.textContent).join(' ')"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    flags = ("--cores", "1", "--kafka-listen", "127.0.0.1:0")
    with running_node(tmp_path_factory.mktemp("topics") / "data", *flags) as node:
        yield node


@pytest.fixture
def page(browser: Browser, node: RunningNode) -> Iterator[Page]:
    page = browser.open(f"{node.url}/console/")
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    yield page
    page.call("Page.close")


def copied(page: Page, text: str) -> str:
    """The text that a button of the pane copies."""
    buttons = "[...document.querySelectorAll('.pane button')]"
    page.run(
        f"window.copied = ''; {buttons}.find((each) => each.textContent === {json.dumps(text)}).click()"
    )
    return str(page.wait("window.copied"))


def go_to(page: Page, position: str) -> None:
    page.run(
        f"document.querySelector('#place').value = {json.dumps(position)};"
        "document.querySelector('.goto').requestSubmit()"
    )


def test_a_topic_is_shown_from_a_place_on_and_its_records_are_copied(
    page: Page, node: RunningNode
) -> None:
    with httpx.Client(base_url=node.url, timeout=60) as web:
        web.put("/v1/topics/till", json={"partitions": 3}).raise_for_status()
        for partition in (0, 1):
            records = [{"value": f"{partition}-{number}", "key": "k"} for number in range(4)]
            body = {"records": records, "partition": partition}
            web.post("/v1/topics/till/records", json=body).raise_for_status()
    go(page, "topic/till")
    page.wait("document.querySelectorAll('.record').length === 8")
    go_to(page, "2")
    page.wait(f"{POSITIONS} === '0:2 0:3 1:2 1:3'")
    wait_text(page, ".state", "records of each partition from there on")
    assert page.run("location.hash") == "#/topic/till?at=2"
    page.run("document.querySelectorAll('.record')[2].click()")
    wait_text(page, "#record-title", "Partition 1, offset 2")
    record = json.loads(copied(page, "Copy record"))
    assert (record["offset"], record["key"], record["value"]) == (2, "k", "1-2")
    assert copied(page, "Copy value") == "1-2"
    command = shlex.split(copied(page, "Copy command"))
    assert json.loads(polynya(*command[1:]).out)["value"] == "1-2"
    go_to(page, "-1")
    page.wait(f"{POSITIONS} === '0:3 1:3'")
    go_to(page, "2030-01-01")
    wait_text(page, ".state", "No partition has records there or later")
    go_to(page, "soon")
    wait_text(page, ".state.wrong", "Type a time")
    go_to(page, "1h")
    page.wait("document.querySelectorAll('.record').length === 8")
    page.run("[...document.querySelectorAll('.goto button')].at(-1).click()")
    wait_text(page, ".state", "The newest 8 records")
    assert page.run("location.hash") == "#/topic/till"
    page.run("window.old = true")
    page.call("Page.navigate", url=f"{node.url}/console/#/topic/till?at=3")
    page.wait(f"{POSITIONS} === '0:3 1:3'")


def test_configs_are_shown_beside_their_defaults(page: Page, node: RunningNode) -> None:
    with httpx.Client(base_url=node.url, timeout=60) as web:
        configs = {"retention.ms": "86400000", "segment.ms": "5"}
        web.put("/v1/topics/set", json={"configs": configs}).raise_for_status()
    go(page, "topic/set")
    cells = "[...document.querySelectorAll('.nodes')].at(-1).querySelectorAll('tbody tr')"
    rows = page.wait(
        f"(() => {{ const rows = [...{cells}].map((row) => [...row.cells].map((cell) => cell.textContent));"
        " return rows.length > 10 && rows })()"
    )
    assert rows[:2] == [
        ["retention.ms", "86400000set", "-1"],
        ["segment.ms", "5set", "has no effect here"],
    ]
    assert ["cleanup.policy", "delete", "delete"] in rows


def test_many_records_are_produced_at_once(page: Page, node: RunningNode) -> None:
    with httpx.Client(base_url=node.url, timeout=60) as web:
        web.put("/v1/topics/lines", json={"partitions": 1}).raise_for_status()
    go(page, "topic/lines")
    open_act(page, "Produce")
    fill(page, text="\n \n", lines=True)
    wait_text(page, ".act-dialog .wrong", "The text has no lines")
    fill(page, text="\n".join("x" * 1001))
    wait_text(page, ".act-dialog .wrong", "1,001 lines; at most 1,000")
    page.run("document.querySelector('.act-dialog').close()")
    page.wait("document.querySelector('.act-dialog') === null")
    command = act(page, "Produce", text="one\n\ntwo\r\n", lines=True, key="k")
    assert command.startswith("polynya produce lines one two --key k ")
    page.wait(f"{POSITIONS} === '0:0 0:1'")
    with httpx.Client(base_url=node.url, timeout=60) as web:
        whole = {"Accept": "application/vnd.polynya.records+json"}
        stored = web.get("/v1/stream/kafka/lines/0", headers=whole).json()
    assert [(each["key"], each["value"]) for each in stored] == [("k", "one"), ("k", "two")]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("group/nobody", "There is no consumer group “nobody”"),
        ("transaction/nobody", "No Kafka client has used the transactional id “nobody”"),
        ("subscription/nobody", "there is no such subscription"),
        ("topic/nobody", "topic 'nobody' does not exist"),
        ("table/nobody", "create it: polynya table create nobody"),
        ("stream/nobody", "The stream “nobody” does not exist"),
    ],
)
def test_a_page_about_nothing_says_so_and_has_no_acts(page: Page, path: str, words: str) -> None:
    go(page, path)
    page.wait(f"document.querySelector('main').textContent.includes({json.dumps(words)})")
    assert page.run("[...document.querySelectorAll('.acts:not(.waiting)')].length") == 0
    assert "Retrying" not in page.run("document.querySelector('main').textContent")
