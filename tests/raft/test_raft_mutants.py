"""Each mistake of the list is caught by a story, under chaos, or by a test of the parts.

CI tries a twentieth of them, and whether all fit the code. `make mutants` and `make hunt` try all."""

from __future__ import annotations

import pytest
from long_tests import every_nth
from sim.raft_mutants import MUTANTS, caught, source_of


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS.values()}))
def test_mistakes_fit_the_code(file: str) -> None:
    for name, mutant in MUTANTS.items():
        if mutant.file == file:
            assert source_of(mutant), name


@pytest.mark.process
@pytest.mark.parametrize("name", every_nth(MUTANTS, 20))
def test_it_is_caught(name: str) -> None:
    assert caught(MUTANTS[name]), f"nothing notices when it {name}"
