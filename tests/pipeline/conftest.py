"""A world for each test of the pipeline: whatever it started is gone at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import s3_server  # noqa: F401  (a fixture)
from worlds.pipeline import PipeWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PipeWorld]:
    made = PipeWorld(tmp_path / "data")
    try:
        yield made
    finally:
        made.close()
