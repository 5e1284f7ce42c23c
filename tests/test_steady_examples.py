"""The examples of a test do not depend on which modules are loaded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

NUMBER = 7_316_402_115  # of no other module


def drawn() -> list[int]:
    """Return the examples of a test of integers."""
    found: list[int] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.integers())
    def test(number: int) -> None:
        found.append(number)

    test()
    return found


def test_a_loaded_module_changes_no_example(tmp_path: Path) -> None:
    before = drawn()
    assert len(set(before)) > 100
    path = tmp_path / "loaded_for_examples.py"
    path.write_text("".join(f"N{number} = {NUMBER + number}\n" for number in range(50)))
    spec = importlib.util.spec_from_file_location("loaded_for_examples", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded_for_examples"] = module
    try:
        spec.loader.exec_module(module)
        assert drawn() == before
    finally:
        del sys.modules["loaded_for_examples"]
