"""Every script under transaction_scripts/ states the answers of a coordinator: each cell of the
table in docs/design/transactions.md. `REWRITE=1` rewrites the traces."""

from pathlib import Path

import pytest
from stories.scripts import check_script
from stories.transactions import run

SCRIPTS = sorted((Path(__file__).parent / "transaction_scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    check_script(path, run)


def test_a_script_with_a_wrong_trace_is_caught() -> None:
    text = SCRIPTS[0].read_text()
    assert run(text.replace("PREPARE_COMMIT", "EMPTY")) != text.replace("PREPARE_COMMIT", "EMPTY")
