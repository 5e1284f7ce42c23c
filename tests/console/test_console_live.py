"""The records of many streams as they arrive: followed, filtered, paused."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from chromium import Browser, browser
from product import running_node
from worlds.console_acts import go, wait_text

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture

JSON = {"Content-Type": "application/json"}
SHOWN = (
    "[...document.querySelectorAll('.record')].map((row) => "
    "row.querySelector('.origin').textContent + ' ' + row.querySelector('.preview').textContent).join('; ')"
)


def test_many_streams_are_followed_filtered_and_paused(browser: Browser, tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--cores", "1") as node:

        def append(name: str, *values: str) -> None:
            body = f"[{','.join(values)}]".encode()
            httpx.post(f"{node.url}/v1/stream/{name}", content=body, headers=JSON, timeout=60)

        def create(name: str) -> None:
            httpx.put(f"{node.url}/v1/stream/{name}", headers=JSON, timeout=60)

        for name in ("runs/a", "runs/b", "other"):
            create(name)
        append("runs/a", '{"n":0}')
        page = browser.open(f"{node.url}/console/")
        go(page, "records?of=runs/")
        wait_text(page, ".state", "1 record of 2 streams")
        page.press("l")
        wait_text(page, ".state", "Live: 2 streams, 0 new records")
        assert page.run("location.hash").endswith("live=1")
        append("runs/a", '{"n":1.50}')
        page.wait(f"{SHOWN} === 'runs/a {{\"n\":1.50}}'")
        append("runs/b", '{"n":2}')
        append("other", '{"n":3}')
        page.wait(f'{SHOWN} === \'runs/b {{"n":2}}; runs/a {{"n":1.50}}\'')
        create("runs/c")
        append("runs/c", '{"n":4}')
        page.wait(f"{SHOWN}.startsWith('runs/c')")
        wait_text(page, ".state", "Live: 3 streams, 3 new records")
        page.press(" ")
        wait_text(page, ".state", "Paused")
        append("runs/a", '{"n":5}')
        wait_text(page, ".state", "1 on hold")
        assert not page.run(f"{SHOWN}.startsWith('runs/a')")
        page.press(" ")
        page.wait(f"{SHOWN}.startsWith('runs/a {{\"n\":5}}; runs/c')")
        page.run("document.querySelector('.record').click()")
        wait_text(page, ".pane h2", "runs/a offset 2")
        page.press("Escape")
        page.run(
            "(() => { const field = document.querySelector('#by-where'); field.value = '$.n>=10';"
            " field.form.requestSubmit(); })()"
        )
        wait_text(page, ".state", "Live: 3 streams, 0 new records")
        append("runs/a", '{"n":6}', '{"n":10}')
        append("runs/b", '{"n":11}')
        page.wait(f'{SHOWN} === \'runs/b {{"n":11}}; runs/a {{"n":10}}\'')
        wait_text(page, ".state", "3 new records")
        page.press("l")
        wait_text(page, ".state", "2 records of 3 streams")
        assert not page.run("location.hash").endswith("live=1")
        page.call("Page.close")
