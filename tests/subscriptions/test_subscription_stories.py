"""Every script under scripts/ states the machines' responses. `REWRITE=1` rewrites the traces."""

from pathlib import Path

import pytest
from stories.scripts import check_script, scripts_of
from subscription_script import run

SCRIPTS = scripts_of(__file__)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    check_script(path, run)


def test_a_script_with_a_wrong_trace_is_caught() -> None:
    text = SCRIPTS[0].read_text()
    assert run(text.replace("CREATED", "EXISTS")) != text.replace("CREATED", "EXISTS")
