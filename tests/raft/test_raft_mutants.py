"""Each mistake of the list is caught by a story, under chaos, or by a test of the parts."""

from __future__ import annotations

import pytest
from sim.raft_mutants import MUTANTS, caught

pytestmark = pytest.mark.process


@pytest.mark.parametrize("name", MUTANTS)
def test_it_is_caught(name: str) -> None:
    assert caught(MUTANTS[name]), f"nothing notices when it {name}"
