"""axe-core on each page of the console, in light and dark."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, Page, browser
from long_tests import long
from missing import missing
from node_js import installed
from worlds.console_pages import PAGES, Guarded, fill, guarded_node, open_console, show

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
__all__ = ["browser"]  # the fixture

WORSE = ("moderate", "serious", "critical")
CHECK = (
    "axe.run(document, {RULES resultTypes: ['violations'], elementRef: false})"
    ".then(({violations}) => violations.map(({id, impact, nodes}) => ({id, impact,"
    " nodes: nodes.slice(0, 4).map(({target, any, html}) => [target.join(' '), any[0]?.message ?? html])})))"
)


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the source of axe-core."""
    try:
        folder = installed(Path(__file__).parent.parent / "worlds" / "axe", "axe")
    except (AssertionError, OSError, subprocess.SubprocessError) as reason:
        missing(f"npm cannot bring axe-core: {reason}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_node(tmp_path_factory.mktemp("axe")) as node:
        with node.web() as web:
            fill(web)
        yield node


def violations(page: Page, rules: str) -> list[str]:
    """The violations that axe finds on the page as it is, a line each."""
    return [
        f"{each['id']} ({each['impact']}): {json.dumps(each['nodes'])}"
        for each in page.run(CHECK.replace("RULES", rules))
        if each["impact"] in WORSE
    ]


@pytest.mark.parametrize("dark", [False, *long([True])], ids=["light", "dark"])
def test_no_page_is_closed_to_some_people(
    browser: Browser, node: Guarded, axe: str, dark: bool
) -> None:
    page = open_console(browser, node)
    page.size(1280, 900, dark=dark)
    page.run(f"{axe};0")
    rules = "runOnly: ['color-contrast'], " if dark else ""  # the others see no theme
    found = {}
    for shown in PAGES:
        show(page, shown)
        found[shown.name] = violations(page, rules)
    page.call("Page.close")
    assert not {name: lines for name, lines in found.items() if lines}
