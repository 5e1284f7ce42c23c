"""A real power cut under a running writer of a journal."""

from pathlib import Path

import pytest
from worlds.journal_process import SEGMENT_BYTES, kill_writer, start_writer
from worlds.loop_disk import cut_power, image, mounted

from polynya.wal import Journal

__all__ = ["image"]  # a fixture
pytestmark = pytest.mark.process


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, image: Path) -> None:
    mount, acknowledged = tmp_path / "mount", 0
    for turns in (3, 200, 20, 500):
        with mounted(image, mount):
            writer, found = start_writer(mount / "journal")
            try:
                assert found >= acknowledged and writer.stdout is not None
                for _ in range(turns):
                    acknowledged = int(writer.stdout.readline())
                cut_power(mount)
            finally:
                kill_writer(writer, acknowledged)
        with mounted(image, mount):
            journal = Journal.open(mount / "journal", journal_id=7, segment_bytes=SEGMENT_BYTES)
            indexes = [entry.index for entry in journal.segments.entries()]
            journal.close()
        assert indexes == list(range(1, len(indexes) + 1)) and len(indexes) >= acknowledged
        acknowledged = len(indexes)
