"""Disks of the chaos: power comes back though a process of the node ends only now."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from missing import left_out

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.disks import Disk, why_not  # noqa: E402  (not a part of the package)

pytestmark = pytest.mark.process


def test_who_still_ends_is_waited_for(tmp_path: Path) -> None:
    why = why_not(tmp_path)
    if why:
        left_out(why)
    disk = Disk(tmp_path / "disk")
    try:
        file = (disk.path / "held").open("wb")
        disk.cut_power()
        closing = threading.Timer(0.3, file.close)
        closing.start()
        disk.restore()
        assert file.closed and list(disk.path.iterdir())
    finally:
        disk.close()
