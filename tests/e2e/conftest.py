"""A world for each test of the real server: whatever it started is gone at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    try:
        yield made
    finally:
        made.close()
