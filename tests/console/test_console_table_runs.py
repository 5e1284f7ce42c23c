"""The runs of a table on its page: the buttons, the progress while one runs, and its cancellation. The node's
answers about runs are played, as a real run needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import Browser, browser
from worlds.console_acts import act, go, open_act, wait_text
from worlds.console_pages import Guarded, guarded_node, open_console

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture

PLAY = """
(() => {
  const real = window.fetch;
  window.runs = []; window.sent = [];
  window.fetch = async (target, options) => {
    const { pathname } = new URL(target.url ?? target, location.href);
    const part = pathname.split("/v1/tables/sales/")[1];
    if (part === "runs") return new Response(JSON.stringify({ runs: window.runs }), { headers: { "Content-Type": "application/json" } });
    if (["sync", "rebuild", "replay", "cancel"].includes(part)) {
      window.sent.push([part, JSON.parse(options.body)]);
      return new Response(JSON.stringify({ run: window.runs[0] }), { status: part === "cancel" ? 200 : 202 });
    }
    return real(target, options);
  };
})()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_node(tmp_path_factory.mktemp("table-runs")) as node:
        yield node


def run_of(state: str, message: str, **more: Any) -> str:
    run = {
        "id": "4e28",
        "verb": "sync",
        "table": "sales",
        "caller": "root",
        "asked_ms": 1,
        "started_ms": 1,
    }
    run |= {"ended_ms": 0, "state": state, "message": message, "log": [message]} | more
    return f"window.runs = [{json.dumps(run)}]"


def test_the_page_follows_a_run_until_its_end(browser: Browser, node: Guarded) -> None:
    with node.web() as web:
        web.put("/v1/tables/sales", json={"prefix": "sales/"}).raise_for_status()
    page = open_console(browser, node)
    page.run(PLAY)
    go(page, "table/sales")
    open_act(page, "Rebuild")
    page.wait(
        "document.querySelector('.act-dialog [type=submit]').disabled"
    )  # it asks for the name
    page.run("document.querySelector('.act-dialog').close()")
    page.wait("document.querySelector('.act-dialog') === null")
    page.run(run_of("running", "starting Spark"))
    assert act(page, "Sync") == f"polynya table sync sales --server {node.url}"
    wait_text(page, "#runs", "starting Spark")
    page.wait("document.querySelector('#runs button') !== null")
    page.run("document.querySelector('#runs button').focus()")
    page.run(run_of("running", "converted 12 records"))  # the page asks for it itself
    wait_text(page, "#runs", "converted 12 records")
    assert page.run("document.activeElement.textContent") == "Cancel …", "it keeps its focus"
    page.run("document.querySelector('#runs button').click()")
    page.wait("document.querySelector('dialog.act-dialog')?.open")
    wait_text(page, ".act-dialog .same code", "table runs sales --cancel 4e28")
    page.run("document.querySelector('.act-dialog form').requestSubmit()")
    page.wait("document.querySelector('.act-dialog') === null")
    page.run(run_of("cancelled", "stopped", ended_ms=5))
    wait_text(page, "#runs", "cancelled")
    page.wait("document.querySelector('#runs button') === null")
    act(page, "Rebuild", typed="sales", columns="price:double", partitions="day(timestamp)")
    assert page.run("window.sent") == [
        ["sync", {}],
        ["cancel", {"run": "4e28"}],
        ["rebuild", {"columns": {"price": "double"}, "partitions": ["day(timestamp)"]}],
    ]
    page.call("Page.close")


def test_the_button_of_a_token_keeps_its_focus_while_the_page_looks_again(
    browser: Browser, node: Guarded
) -> None:
    page = open_console(browser, node)
    go(page, "access")
    page.wait("document.querySelector('tbody .acts:not(.waiting) button') !== null")
    page.run("document.querySelector('tbody .acts button').focus()")
    node.token("guest", "read")
    wait_text(page, "tbody", "guest")  # by a look of the page
    assert page.run("document.activeElement.textContent") == "Revoke …"
    page.call("Page.close")
