"""A node to which an older image of its disk is put back is kept out by those who remember more:
nothing that was acknowledged is lost. That without it something is, a defect shows
(sim/mutants.py)."""

from __future__ import annotations

import pytest
from long_tests import long
from sim.copies import Copies


@pytest.mark.parametrize("seed", [1, *long((2, 3, 5))])
def test_an_older_image_is_kept_out_and_nothing_is_lost(seed: int) -> None:
    episode = Copies(seed, 40)
    episode.play()
    assert episode.world.noticed
