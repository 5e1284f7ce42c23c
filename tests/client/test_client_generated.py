"""The blocking client is made from the asynchronous one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "blocking_client.py"))


@pytest.mark.process  # ruff
@pytest.mark.parametrize("name", SCRIPT["MODULES"])
def test_a_generated_module_is_what_the_script_makes(name: str) -> None:
    assert (SCRIPT["FOLDER"] / f"{name}.py").read_text() == SCRIPT["blocking"](name), (
        "run `python scripts/blocking_client.py`"
    )
