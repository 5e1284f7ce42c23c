"""The generated pages are the tables as they are now."""

from pathlib import Path

import pytest

from polynya.config.settings import SETTINGS
from polynya.node.reference_pages import PAGES, limits_page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_up_to_date(name):
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), (
        "run: python -m polynya.node.reference_pages"
    )


def test_every_setting_and_limit_is_on_its_page():
    page = PAGES["configuration.md"]()
    assert all(f"| `{setting.key}` |" in page for setting in SETTINGS)
    assert "| `APPEND_BYTES_MAX` | 32MiB | one request body; " in limits_page()
    assert "F21" not in limits_page()
