"""The schema registry in the console: the subjects, and what a version of one changed."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from chromium import Browser, browser
from product import running_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture
FIELDS = [
    {"name": "item", "type": "long"},
    {"name": "<b>note</b>", "type": "string", "default": ""},
]


def test_subjects_and_their_versions_are_shown(browser: Browser, tmp_path: Path) -> None:
    with running_node(tmp_path / "data", "--cores", "1") as node:
        path = f"{node.url}/registry/subjects/shop%2Forders/versions"
        for count in (1, 2):
            properties = {each["name"]: {"type": "string"} for each in FIELDS[:count]}
            schema = {"type": "object", "properties": properties, "additionalProperties": count > 2}
            body = {"schema": json.dumps(schema), "schemaType": "JSON"}
            assert httpx.post(path, json=body, timeout=60).status_code == 200
        page = browser.open(f"{node.url}/console/#/schemas")
        link = "document.querySelector('a[href=\"#/schema/shop%2Forders\"]')"
        page.wait(f"!!{link}")
        assert "JSON" in page.run(f"{link}.closest('tr').textContent")
        page.run(f"{link}.click()")
        page.wait("document.querySelectorAll('.schema-text .added').length > 0")
        assert (
            page.run("document.querySelector('h2').textContent") == "Version 2, against version 1"
        )
        added = page.run(
            "[...document.querySelectorAll('.schema-text .added')].map((each) => each.textContent).join('')"
        )
        assert '"<b>note</b>": {' in added
        assert page.run("document.querySelector('.numbers').textContent").endswith("BACKWARD")
        page.run("document.querySelector('a[data-row=\"1\"]').click()")
        page.wait("document.querySelector('h2')?.textContent === 'Version 1'")
        assert page.run("document.querySelector('.schema-text .added')") is None
        page.call("Page.close")
