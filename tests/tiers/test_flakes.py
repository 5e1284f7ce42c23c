"""Flaky tests, which failed and passed on repetition, are recorded once and shown on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import flakes
from tiers.flakes import KEPT, LOCAL, PAGE, Flake, merge, page_of, read_flakes, write_flakes


def flake(test: str, commit: str = "abc", line: str = "refused", text: str = "") -> Flake:
    return Flake(test, commit, line, text)


def test_each_is_kept_once_in_the_order_of_names_and_shortened() -> None:
    merged = merge([flake("b")], [flake("b"), flake("a", text="x" * 9_999), flake("b", "def")])
    assert [(each.test, each.commit) for each in merged] == [
        ("a", "abc"),
        ("b", "abc"),
        ("b", "def"),
    ]
    assert len(merged[0].text) == 2_000


def test_they_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "build" / "flakes.json"
    assert read_flakes(path) == []
    write_flakes(path, [flake("a")])
    assert read_flakes(path) == [flake("a")]


def test_a_row_has_the_count_and_the_last_failure() -> None:
    page = page_of([flake("a"), flake("a", "def", "a|b <c>")])
    assert page.splitlines()[-1] == r"| `a` | 2 | `def` | a\|b &lt;c> |"


def test_the_failures_of_runs_are_moved_to_the_list_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, page = tmp_path / "flakes.json", tmp_path / "page.md"
    for name, path in (("ROOT", tmp_path), ("KEPT", kept), ("PAGE", page)):
        monkeypatch.setattr(flakes, name, path)
    write_flakes(kept, [flake("b")])
    write_flakes(tmp_path / LOCAL, [flake("a"), flake("b")])
    for _ in range(2):
        assert flakes.main() == 0
        assert read_flakes(kept) == [flake("a"), flake("b")]
        assert page.read_text() == page_of(read_flakes(kept))
        assert not (tmp_path / LOCAL).exists()


def test_the_page_is_of_what_is_kept() -> None:
    assert PAGE.read_text() == page_of(read_flakes(KEPT)), "make flakes"
