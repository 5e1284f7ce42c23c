"""Every script under scripts/ says what the machines answer. `REWRITE=1` writes the traces anew."""

import os
from pathlib import Path

import pytest
from subscription_script import run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text()
    trace = run(text)
    if os.environ.get("REWRITE") == "1":
        path.write_text(trace)
    else:
        assert trace == text


def test_a_script_with_a_wrong_trace_is_caught() -> None:
    text = SCRIPTS[0].read_text()
    assert run(text.replace("CREATED", "EXISTS")) != text.replace("CREATED", "EXISTS")
