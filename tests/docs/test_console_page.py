"""The expectations of operators on the console's page of the manual: each has a place that exists, or is
named as not there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from polynya.cli.app import cli

ROOT = Path(__file__).parent.parent.parent
STATIC = ROOT / "src" / "polynya" / "console" / "static"
PAGE = (ROOT / "docs" / "console.md").read_text("utf-8")
EXPECTED_ROWS_MIN = 15


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


EXPECTED = rows("What operators expect")


def test_every_expectation_has_a_place_or_a_reason() -> None:
    assert len(EXPECTED) >= EXPECTED_ROWS_MIN and all(len(row) == 2 for row in EXPECTED)
    without = [row for row in EXPECTED if not re.search(r"`(#/|/|polynya )|\]\(", row[1])]
    assert not without
    missing = rows("What is not there")
    assert all(len(row) == 2 and len(row[1]) > 20 for row in missing), "each with its reason"
    for word in ("Avro", "links", "redaction", "labels for each stream"):
        assert any(word in row[0] for row in missing), f"'{word}' is named as not there"


@pytest.mark.parametrize("route", sorted({*re.findall(r"`(#/\w+)", str(EXPECTED))}))
def test_the_pages_are_in_the_console(route: str) -> None:
    pages = re.search(r"const PAGES = \{ (.*?) \};", (STATIC / "main.js").read_text("utf-8"))
    assert pages is not None and route.removeprefix("#/") in pages[1].split(", ")
    assert (STATIC / f"{route.removeprefix('#/')}.js").is_file()


@pytest.mark.parametrize("path", sorted({*re.findall(r"`(/[\w/]+)", str(EXPECTED))}))
def test_the_paths_are_routes_of_a_node(path: str) -> None:
    text = "".join(file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))
    assert f'"{path}"' in text


@pytest.mark.parametrize("command", sorted({*re.findall(r"`polynya ([\w ]+)`", str(EXPECTED))}))
def test_the_commands_are_there(command: str) -> None:
    found: click.Command = cli
    for word in command.split():
        assert isinstance(found, click.Group)
        child = found.get_command(click.Context(found), word)
        assert child is not None, f"'{word}' of 'polynya {command}'"
        found = child
