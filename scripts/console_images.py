"""Write the images of docs/console.md: screenshots of the console of a running node, in the Chromium
of the tests.

    PYTHONPATH=src:tests python scripts/console_images.py URL [--token TOKEN] [--name NAME ...]

The node has what an image shows: streams with records, a topic, a subscription, tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from chromium import Page, running_browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"


class Shot(NamedTuple):
    """An image: the page, a condition that it waits for, an act whose dialog it shows, and the
    selector of a button to press."""

    route: str
    ready: str
    act: str = ""
    click: str = ""
    dark: bool = False
    width: int = 1200
    height: int = 800


ROWS = "document.querySelectorAll('tbody tr').length > 0"
RECORDS = "document.querySelectorAll('.record').length > 0"
QUERY = """select * from (values ('UA', 58665), ('B6', 54635), ('EV', 54173), ('DL', 48110))
flights(carrier, flights)"""
SHOTS = {
    "overview": Shot(
        "overview", f"document.querySelectorAll('.trend').length > 8 && {ROWS}", height=1680
    ),
    "streams": Shot("streams", "document.querySelector('.spark .line') !== null"),
    "stream": Shot("stream/shop/orders", RECORDS, dark=True),
    "append": Shot("stream/shop/orders", RECORDS, act="Append"),
    "records": Shot("records?of=shop/&where=$.total>=20", RECORDS, dark=True),
    "sql": Shot(
        f"sql?q={quote(QUERY)}", "document.querySelector('#result td') !== null", click="#chart"
    ),
    "topic": Shot("topic/orders", RECORDS, dark=True),
    "subscription": Shot("subscription/mailer", ROWS),
    "access": Shot("access", ROWS),
    "phone": Shot("stream/shop/orders", RECORDS, dark=True, width=390, height=844),
}


def shoot(page: Page, name: str) -> None:
    """Write one image."""
    shot = SHOTS[name]
    page.size(shot.width, shot.height, dark=shot.dark, mobile=shot.width < 500)
    page.run(f"location.hash = {json.dumps(f'#/{shot.route}')}")
    page.wait("document.querySelector('#title') !== null")
    page.wait(shot.ready)
    if shot.act:
        row = "[...document.querySelectorAll('.acts:not(.waiting) button')]"
        button = f"{row}.find((each) => each.textContent.startsWith({json.dumps(shot.act)}))"
        page.wait(f"{button} !== undefined")
        page.run(f"{button}.click()")
    if shot.click:
        page.run(f"document.querySelector({json.dumps(shot.click)}).click()")
    page.run("new Promise((resolve) => setTimeout(resolve, 500))")
    page.screenshot(IMAGES / f"console-{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--token", default="")
    parser.add_argument("--name", action="append", choices=SHOTS, help="an image; default: all")
    given = parser.parse_args()
    with running_browser() as browser:
        for name in given.name or SHOTS:
            page = browser.open(f"{given.url}/console/")
            page.run(f"sessionStorage.setItem('polynya.token', {json.dumps(given.token)})")
            page.call("Page.reload")
            page.wait("document.readyState === 'complete'")
            shoot(page, name)
            page.call("Page.close")


if __name__ == "__main__":
    main()
