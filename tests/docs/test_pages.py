"""Generated pages are current; links lead somewhere; every command and every error code has its
place."""

from __future__ import annotations

import importlib
import importlib.util
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def write_docs() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("write_docs", ROOT / "scripts" / "write_docs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "errors.md"])
def test_a_generated_page_is_what_is_written(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == write_docs().PAGES[name](), (
        "run: python scripts/write_docs.py"
    )


def test_the_man_page_is_what_is_written() -> None:
    written = write_docs()
    assert written.MAN.read_text("utf-8") == written.man_page(), "run: python scripts/write_docs.py"


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached = {
        (ROOT / target).resolve()
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text("utf-8"))
    }
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.resolve() not in reached]
    assert not missing


def test_the_readme_names_every_make_target() -> None:
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "check", "bench"} <= set(targets)
    assert "make run" in (ROOT / "README.md").read_text("utf-8") and "make test" in (
        ROOT / "README.md"
    ).read_text("utf-8")


def test_the_benchmarks_are_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    report = importlib.import_module("bench.report")
    assert report.PAGE.read_text("utf-8") == report.page(), "run: python -m bench.report"
    for name, chart in report.charts().items():
        assert (report.IMAGES / name).read_text("utf-8") == chart, "run: python -m bench.report"


def test_the_sizing_page_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    sizing = importlib.import_module("bench._sizing_page")
    saved = sizing.result()
    assert sizing.PAGE.read_text("utf-8") == sizing.page(saved), (
        "run: python -m bench.sizing --page"
    )
    busy, quiet = (sizing.page(saved | {"busy": why}) for why in ("a load of 9", ""))
    assert "**Not measured yet" in busy and "Not measured" not in quiet
    assert re.findall(r"\d (?:MiB|KiB|MB/s|s|µs|B) \|$", busy, re.MULTILINE) == []
    assert "| — |" in busy and "—" not in quiet, (
        "each row has a number, unless the machine was busy"
    )


def test_each_benchmark_is_named_on_a_page() -> None:
    pages = " ".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    names = [path.stem for path in (ROOT / "bench").glob("*.py") if path.stem[0] != "_"]
    assert len(names) > 20
    unused = [name for name in names if not re.search(rf"\bbench[./]{name}\b", pages)]
    assert not unused, "name it on a page, or remove it"


@pytest.mark.parametrize(
    "part", ["README.md", "CHANGELOG.md", "docs", "src", "packaging"], ids=lambda part: part
)
def test_no_text_promises_a_published_package(part: str) -> None:
    """The texts install from the checkout."""
    path = ROOT / part
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in files
        if file.suffix in {".md", ".py", ".js", ".html", ".service", ".1", ""}
        for line in file.read_text("utf-8", errors="replace").splitlines()
        if re.search(
            r"(pip|pipx|uv|uvx)( tool)?( pip)? (install|run)\b[^`]*\bpolynya(\[|\b(?![/'.]))", line
        )
        and "checkout" not in line
    ]
    assert found == []
