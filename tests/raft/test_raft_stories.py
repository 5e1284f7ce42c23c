"""Each file of stories/ is a script with its trace. `REWRITE=1 pytest tests/raft` rewrites the
traces; commit only an understood diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stories import raft as raft_story

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    recorded = path.read_text()
    happened = raft_story.run(recorded)
    if os.environ.get("REWRITE"):
        path.write_text(happened)
    assert happened == recorded or os.environ.get("REWRITE")


def test_there_are_stories() -> None:
    assert len(STORIES) >= 15
