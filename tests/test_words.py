"""The part of the language rules that a program can check: docstrings, comments, pages, renamed words, commit subjects."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import left_out

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NO_BEGINNING = {"What", "Whether", "Of", "Who", "Whoever", "As", "For", "It", "Where", "How", "Those", "That"}
AVOIDED = re.compile(r"\b(anew|by itself|for ever|so long as|nobody|mended|whoever)\b", re.IGNORECASE)
MARKS = re.compile(r"\((?:[FR]\d+)(?:, ?[FR]?\d+)*\)")  # of design notes that are not in this repository
SENTENCE_WORDS_MAX = 30  # 20 is the aim
PLAIN_PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in (
        "access", "benchmarks", "cluster", "cluster-howto", "concepts", "durability", "glossary", "operations", "quickstarts", "reliability",
        "runbooks", "subscriptions", "tables",
    )),
    *(ROOT / "docs" / "decisions").glob("*.md"),
    *(ROOT / "docs" / "design").glob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]  # fmt: skip
RENAMED = (
    "OTHER_LIFE", "OVER_HOT_BOUND", "HOT_LIMIT", "HOT_FULL", "BODY_BUDGET", "ANSWER_BUDGET", "CLUSTER_UNREADY", "QUESTIONS_BUSY", "BAD_QUESTION",
    "JOB_TAKEN", "JOB_LOST", "FORBIDDEN_HOST", "polynya_sql_questions_total", "polynya_recall_copies_total", "polynya_nodes_away",
    "leads_follow_writers",
)  # fmt: skip
LISTS_RENAMED = ROOT / "docs" / "migration.md"  # the table of what was renamed
SUBJECT_MAX = 72
SUBJECTS_SINCE = "23d6f08"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def sentences(text: str) -> Iterator[str]:
    """Sentences of a docstring, without the blocks that click prints as they are (after a line with \\b) and without indented code."""
    prose = re.sub(r"^\x08\n(?:.+\n?)*", "", text, flags=re.MULTILINE)
    prose = re.sub(r"^ {4,}.*$", "", prose, flags=re.MULTILINE)
    yield from re.split(r"(?<=[.!?:;])\s+|\n\n|\n\s*[*-] ", prose)


def faults(text: str) -> Iterator[str]:
    """What is wrong with a docstring."""
    if text.split(maxsplit=1)[0].strip("`,:") in NO_BEGINNING:
        yield f"begins with {text.split(maxsplit=1)[0]!r}"
    if found := AVOIDED.search(text):
        yield f"says {found[0]!r}"
    if found := MARKS.search(text):
        yield f"cites {found[0]}, which is not in the repository"
    for sentence in sentences(text):
        if len(sentence.split()) > SENTENCE_WORDS_MAX:
            yield f"has a sentence of {len(sentence.split())} words: {sentence[:60]!r}"


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_are_plain_sentences() -> None:
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {fault}" for path in SOURCES for line, text in docstrings(path) for fault in faults(text)
    ]


def test_comments_avoid_the_same_words() -> None:
    def says(text: str) -> bool:
        return bool(AVOIDED.search(text) or MARKS.search(text))

    texts = {path: path.read_text() for path in SOURCES}
    found = [(path, line, text) for path, whole in texts.items() if says(whole) for line, text in comments(whole) if says(text)]
    assert not [f"{path.relative_to(ROOT)}:{line}: {text}" for path, line, text in found]


@pytest.mark.parametrize("page", PLAIN_PAGES, ids=lambda page: page.name)
def test_a_page_avoids_the_same_words(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    assert not AVOIDED.findall(text)


def test_renamed_words_are_gone() -> None:
    folders = ("src", "docs", "packaging", "scripts", "chaos", "bench")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".js", ".html", ".yaml", ".1", ".toml"}
    ]
    old = re.compile(r"(?<![A-Za-z0-9_])(?:" + "|".join(RENAMED) + r")(?![A-Za-z0-9_])")
    assert len(files) > 300
    assert not [
        f"{path.relative_to(ROOT)}: {old.findall(path.read_text('utf-8'))}"
        for path in files
        if path != LISTS_RENAMED and old.search(path.read_text("utf-8"))
    ]


def test_subjects_of_commits_are_short() -> None:
    command = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        left_out(f"no history of commits here: {done.stderr.strip()}")
    assert not [subject for subject in done.stdout.splitlines() if len(subject) > SUBJECT_MAX or subject.endswith(".")]


@pytest.mark.parametrize(
    "text",
    ["What a node is.", "Ask anew.", "Return the level (F12).", "Return " + "one more " * 20 + "word.", "Of one core."],
)
def test_the_rules_can_fail(text: str) -> None:
    assert list(faults(text))


def test_click_blocks_and_plain_docstrings_pass() -> None:
    assert not list(faults("Return the tail.\n\n\b\npolynya read " + "word " * 40 + "\n\nRaises Unavailable."))
