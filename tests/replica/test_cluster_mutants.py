"""Each defect of the list is caught by one of the first seeds."""

from __future__ import annotations

import pytest
from sim_mutants import MUTANTS, caught


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_is_caught(name: str) -> None:
    assert caught(name), f"no seed notices: {name}"
