"""Whole records in the console, of streams of every kind: offset, key, headers, times and value of
each, one record a row, whatever batch holds it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chromium import Browser, Page, browser
from product import SOURCE, RunningNode, environment, polynya, running_node
from test_console_browser import fill, go, opened, texts, wait_text

from polynya.wire.headers import RECORDS

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

WHOLE = {"Content-Type": RECORDS}
RECORD_TIME_MS = 1_700_000_000_123


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    data = tmp_path_factory.mktemp("records") / "data"
    with running_node(data, "--cores", "1", "--kafka-listen", "127.0.0.1:0") as node:
        lines = "".join(f"{number}\n" for number in range(1, 51)).encode()
        done = polynya(
            "produce", "clicks", "--key", "a", "--partition", "0", server=node.url, stdin=lines
        )
        assert done.code == 0, done
        with httpx.Client(base_url=f"{node.url}/v1/stream/", timeout=60) as web:
            for name, kind in (
                ("notes", "text/plain"),
                ("blobs", "application/octet-stream"),
                ("orders", "application/json"),
            ):
                web.put(name, headers={"Content-Type": kind}).raise_for_status()
            web.post("notes", content=b"alone", headers={"Content-Type": "text/plain"})
            odd = {
                "key": {"$base64": "/w=="},
                "headers": [["raw", {"$base64": "AP8="}], ["h", None]],
            }
            web.post(
                "notes",
                json=[{"key": f"k{at}", "value": f"line {at}\n"} for at in range(1, 300)]
                + [{**odd, "timestamp": RECORD_TIME_MS, "value": '{"a": [1.50]}'}, {"value": None}],
                headers=WHOLE,
            ).raise_for_status()
            web.post(
                "blobs",
                content=bytes(range(256)),
                headers={"Content-Type": "application/octet-stream"},
            )
            web.post(
                "blobs",
                content=b"\0" * 100_000,
                headers={"Content-Type": "application/octet-stream"},
            )
            web.post(
                "orders", json=[{"key": "", "value": {"n": at}} for at in range(3)], headers=WHOLE
            )
        yield node


@pytest.fixture
def page(browser: Browser, node: RunningNode) -> Iterator[Page]:
    with opened(browser, node.url) as page:
        page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        yield page


def click(page: Page, text: str, inside: str = "main") -> None:
    page.run(
        f"[...document.querySelectorAll({json.dumps(f'{inside} button')})]"
        f".find((each) => each.textContent === {json.dumps(text)}).click()"
    )


def open_row(page: Page, offset: int) -> None:
    page.run(
        "[...document.querySelectorAll('.record')]"
        f".find((each) => each.querySelector('.at').textContent === '{offset}').click()"
    )


def copied(page: Page, text: str, inside: str = "main") -> str:
    page.run("window.copied = ''")
    click(page, text, inside)
    return str(page.wait("window.copied"))


def ran(command: str, folder: Path) -> str:
    """Return the output of a copied command, in a shell that has `polynya`."""
    program = folder / "polynya"
    program.write_text('#!/bin/sh\nexec python3 -m polynya "$@"\n')
    program.chmod(0o755)
    variables = environment(no_proxy="*")
    venv = SOURCE.parent / ".venv" / "bin"
    variables["PATH"] = f"{folder}:{venv}:{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_each_record_of_a_batch_is_a_row_with_its_offset(page: Page) -> None:
    go(page, "#/stream/kafka%2Fclicks%2F0")
    page.wait("document.querySelectorAll('.record').length === 50")
    assert texts(page, ".record .at") == [str(offset) for offset in range(50)]
    assert texts(page, ".record .preview") == [str(number) for number in range(1, 51)]
    assert set(texts(page, ".record .key")) == {"a"}
    wait_text(page, ".state", "Offsets 0 to 49 of 0 to 49")
    fill(page, "#place", "47")
    page.wait("document.querySelectorAll('.record').length === 3")
    assert texts(page, ".record .preview") == ["48", "49", "50"]
    fill(page, "#place", "-1")
    page.wait("document.querySelectorAll('.record').length === 1")
    assert texts(page, ".record .at") == ["49"], "the last one, as with polynya read --from -1"


def test_keys_headers_and_times_are_shown(page: Page) -> None:
    go(page, "#/stream/notes")
    page.wait("document.querySelectorAll('.record').length === 100")
    assert texts(page, ".record .at")[-1] == "301"
    open_row(page, 300)
    wait_text(page, ".pane h2", "Offset 300")
    about = dict(zip(texts(page, ".about dt"), texts(page, ".about dd"), strict=True))
    assert about["Key"] == "0xff"
    assert about["Headers"] == "raw: 0x00ffh: none"
    assert about["Record time"].startswith("2023-11-1") and about["Record time"].endswith(".123")
    assert about["Append time"][:4] >= "2025", "of the same record, as every one has it"
    wait_text(page, ".tree", "0: 1.50")
    assert texts(page, ".record .mark")[-1] == "2 headers"
    open_row(page, 301)
    wait_text(page, ".record-body", "This record has no value")
    assert texts(page, ".record .preview")[-1] == "no value"
    fill(page, "#place", "0")
    page.wait("document.querySelector('.record .at').textContent === '0'")
    open_row(page, 0)
    wait_text(page, ".record-body", "alone")
    assert texts(page, ".about dt") == ["Key", "Append time", "Size"]
    assert texts(page, ".about dd")[0] == "none"
    go(page, "#/stream/orders")
    page.wait("document.querySelectorAll('.record').length === 3")
    assert texts(page, ".record .key") == ["“”"] * 3, "an empty key is not the same as none"


def test_older_and_newer_pages_meet(page: Page) -> None:
    go(page, "#/stream/notes")
    seen = []
    for begin in (202, 102, 2, 0):
        page.wait(f"document.querySelector('.record .at')?.textContent === '{begin}'")
        seen = texts(page, ".record .at") + seen
        page.press("p")
    assert seen == [str(offset) for offset in range(302)]
    for begin in (2, 102, 202):
        page.press("n")
        page.wait(f"document.querySelector('.record .at').textContent === '{begin}'")
    assert page.run(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Newer').disabled"
    )


def test_bytes_are_shown_in_hexadecimal_and_large_records_folded(page: Page) -> None:
    go(page, "#/stream/blobs")
    page.wait("document.querySelector('.record .at')?.textContent === '1'")
    wait_text(page, ".state", "Offset 1 of 0 to 1")  # the newest, even if a page has room for one
    open_row(page, 1)
    wait_text(page, ".hex-view button", "95.7 KiB more")
    page.press("Escape")
    page.press("p")
    page.wait("document.querySelector('.record .at').textContent === '0'")
    assert texts(page, ".record .preview")[0].startswith("00 01 02 03")
    open_row(page, 0)
    wait_text(page, ".hex-view", "000010  10 11 12 13")


def test_a_page_is_filtered_by_key_and_by_text(page: Page) -> None:
    go(page, "#/stream/notes?at=0")
    page.wait("document.querySelectorAll('.record').length === 100")
    page.press("f")
    assert page.run("document.activeElement.id") == "filter"
    fill(page, "#filter", "LINE 7")
    page.wait("document.querySelectorAll('.record').length === 11")
    wait_text(page, ".state", "Offsets 0 to 99 of 0 to 301; 11 of 100 records match")
    fill(page, "#filter", "key: k42")
    page.wait("document.querySelectorAll('.record').length === 1")
    assert texts(page, ".record .at") == ["42"]
    fill(page, "#filter", "nowhere")
    wait_text(page, ".state", "0 of 100 records match")
    fill(page, "#filter", "")
    page.wait("document.querySelectorAll('.record').length === 100")


def test_whole_records_are_followed(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/followed"
    httpx.put(stream, headers={"Content-Type": "text/plain"}, timeout=60)
    go(page, "#/stream/followed")
    wait_text(page, ".state", "The stream has no records yet")
    page.press("l")
    wait_text(page, ".state", "Live")
    httpx.post(stream, content=b"plain", headers={"Content-Type": "text/plain"}, timeout=60)
    records = [{"key": "k", "value": f"a {at}", "headers": [["h", "x"]]} for at in range(3)]
    httpx.post(stream, json=records, headers=WHOLE, timeout=60)
    page.wait("document.querySelectorAll('.record').length === 4")
    assert texts(page, ".record .at") == ["0", "1", "2", "3"]
    assert texts(page, ".record .preview") == ["plain", "a 0", "a 1", "a 2"]
    assert texts(page, ".record .key") == ["k"] * 3
    assert all(texts(page, ".record .when")), "of plain records too"
    command = copied(page, "Copy command")
    assert f"polynya tail followed --offset {4:016d}_{0:016d}" in command


def test_copied_commands_print_what_is_shown(page: Page, node: RunningNode, tmp_path: Path) -> None:
    go(page, "#/stream/kafka%2Fclicks%2F0?at=47")
    page.wait("document.querySelectorAll('.record').length === 3")
    open_row(page, 48)
    wait_text(page, ".pane h2", "Offset 48")
    record = json.loads(copied(page, "Copy record", ".pane"))
    assert (record["offset"], record["key"], record["value"]) == (48, "a", "49")
    assert copied(page, "Copy value", ".pane") == "49"
    one = ran(copied(page, "Copy command", ".pane"), tmp_path).splitlines()
    assert list(map(json.loads, one)) == [record]
    assert json.loads(ran(copied(page, "Copy as curl", ".pane"), tmp_path))[0] == record
    page.press("Escape")
    lines = ran(copied(page, "Copy command"), tmp_path).splitlines()
    rest = json.loads(ran(copied(page, "Copy as curl"), tmp_path))
    assert list(map(json.loads, lines)) == rest
    assert [each["value"] for each in rest] == ["48", "49", "50"]


def test_a_trimmed_stream_shows_what_it_still_has(page: Page, node: RunningNode) -> None:
    stream = f"{node.url}/v1/stream/trimmed"
    kind = {"Content-Type": "application/json"}
    httpx.put(stream, headers=kind, timeout=60)
    for number in range(5):
        httpx.post(stream, json=[number], headers=kind, timeout=60)
    before = {"before": f"{3:016d}_{6:016d}"}
    httpx.post(f"{stream}/retention", json=before, timeout=60).raise_for_status()
    go(page, "#/streams?prefix=trimmed")
    page.wait("document.querySelector('tbody td.number')?.textContent === '2'")
    go(page, "#/stream/trimmed")
    page.wait("document.querySelectorAll('.record').length === 2")
    assert texts(page, ".record .at") == ["3", "4"]
    wait_text(page, ".state", "Offsets 3 to 4 of 3 to 4")
    fill(page, "#place", "1")
    wait_text(page, ".state.wrong", "the first retained offset is 3")
