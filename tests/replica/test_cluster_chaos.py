"""Seeds of a whole cluster under mishaps: what was acknowledged is there, what was refused is not, reads are linearizable, replicas equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sim_chaos import run_episode

TESTS = Path(__file__).parent.parent


FOUND = (  # seeds that once failed
    0,  # an append that waited for a leader kept its old stamp
    219,  # a member was sent a snapshot again and again that the log did not go on from any more
)


@pytest.mark.parametrize("seed", [*FOUND, *range(1, 10)])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run_episode(seed)


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    code = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent / 'src')]!r}; from sim_chaos import run_episode; print(run_episode(9, 12))"
    others = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)]
    assert others == [run_episode(9, 12)] * 2
