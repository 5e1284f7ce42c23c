"""The console's files: their serving, their caching, and their forbidden actions."""

from __future__ import annotations

import re

import pytest

from polynya.console.assets import INDEX, POLICY, TYPES, Assets, to_folder


@pytest.fixture(scope="module")
def assets() -> Assets:
    return Assets()


def text_of(assets: Assets, name: str) -> str:
    answer = assets.answer("GET", name, {})
    assert answer is not None and answer.status == 200
    return answer.body.decode()


def test_the_folder_is_the_page(assets: Assets) -> None:
    answer = assets.answer("GET", "", {})
    assert answer is not None
    assert answer.content_type == "text/html; charset=utf-8"
    assert dict(answer.headers)["Content-Security-Policy"] == POLICY
    assert dict(to_folder().headers)["Location"] == "console/"


def test_every_file_has_its_type_and_the_policy(assets: Assets) -> None:
    assert {"main.js", "style.css", "logo.svg", INDEX} <= set(assets.names)
    for name in assets.names:
        answer = assets.answer("GET", name, {})
        assert answer is not None
        assert answer.content_type == TYPES[name.rpartition(".")[2]]
        assert dict(answer.headers)["Content-Security-Policy"] == POLICY


def test_a_kept_file_is_not_sent_again(assets: Assets) -> None:
    first = assets.answer("GET", "main.js", {})
    assert first is not None
    etag = dict(first.headers)["ETag"]
    again = assets.answer("GET", "main.js", {"if-none-match": etag})
    assert again is not None and (again.status, again.body) == (304, b"")
    assert dict(again.headers)["ETag"] == etag
    other = assets.answer("GET", "main.js", {"if-none-match": '"0"'})
    assert other is not None and other.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "../assets.py",
        "..",
        "static/main.js",
        "main.js/",
        "/etc/passwd",
        "Main.js",
        "assets.py",
        ".",
    ],
)
def test_what_is_no_file_of_it_is_not_there(assets: Assets, path: str) -> None:
    assert assets.answer("GET", path, {}) is None


def test_it_is_only_read(assets: Assets) -> None:
    answer = assets.answer("POST", "main.js", {})
    assert answer is not None and (answer.status, answer.headers) == (
        405,
        (("Allow", "GET, HEAD"),),
    )


def test_nothing_comes_from_elsewhere_and_nothing_is_inline(assets: Assets) -> None:
    page = text_of(assets, INDEX)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    for name in assets.names:
        text = text_of(assets, name)
        loads = r"import\(([^)]+)\)" if name.endswith(".js") else r"url\(([^)]+)\)"
        links = re.findall(r"(?:src|href)=\"([^\"#][^\"]*)\"|from \"([^\"]+)\"|" + loads, text)
        for target in (part for found in links for part in found if part):
            assert target.removeprefix("./") in assets.names, f"{name} names {target}"


def test_no_markup_is_made_of_text(assets: Assets) -> None:
    """All elements are made by `dom.js`, of names and text nodes."""
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|\beval\b|new "
        r"Function"
    )
    assert not [
        name for name in assets.names if name.endswith(".js") and ways.search(text_of(assets, name))
    ]
    makers = [name for name in assets.names if "createElement" in text_of(assets, name)]
    assert makers == ["dom.js"]


def test_files_are_of_a_size_that_one_can_read(assets: Assets) -> None:
    assert max(text_of(assets, name).count("\n") for name in assets.names) < 600
