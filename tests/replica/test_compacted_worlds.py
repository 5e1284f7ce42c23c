"""Key compaction in a simulated cluster: what readers, tables and forks see is true whatever fails, and
defects of compaction are found."""

from __future__ import annotations

import pytest
from sim.compacted import run_compacted


@pytest.mark.parametrize("seed", [0, 3])
def test_the_last_value_of_each_key_stays_whatever_fails(seed: int) -> None:
    run_compacted(seed, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_the_last_value_of_each_key_stays_in_many_worlds(seed: int) -> None:
    run_compacted(seed)
