"""A real power cut under a running writer of an embedded log."""

from pathlib import Path

import pytest
from worlds.journal_process import kill_writer
from worlds.log_process import SEGMENT_BYTES, start_log_writer
from worlds.loop_disk import cut_power, image, mounted

from polynya.embedded import Log, Record

__all__ = ["image"]  # a fixture
pytestmark = pytest.mark.process


@pytest.mark.parametrize("sync", ["each", "never"])
def test_a_power_cut_leaves_whole_batches_and_all_that_was_synced(
    tmp_path: Path, image: Path, sync: str
) -> None:
    """A log that never syncs promises none of its records, but opens again."""
    mount, promised = tmp_path / "mount", 0
    for turns in (3, 200, 500):
        with mounted(image, mount):
            writer, found = start_log_writer(mount / "log", sync)
            acknowledged = found
            try:
                assert writer.stdout is not None
                for _ in range(turns):
                    acknowledged = int(writer.stdout.readline())
                cut_power(mount)
            finally:
                kill_writer(writer, acknowledged)
            assert acknowledged >= found + 5 * turns
            promised = acknowledged if sync == "each" else 0
        with mounted(image, mount), Log(mount / "log", segment_bytes=SEGMENT_BYTES) as log:
            first = log.first("t") if "t" in log.topics() else 0
            end = log.end("t") if "t" in log.topics() else 0
            assert end >= promised
            assert sync == "never" or (end - found) % 5 in (0, 1), "a batch is whole or not there"
            expected = [Record(n, b"%09d" % n * (n % 40)) for n in range(first, end)]
            assert not end or list(log.iterate("t")) == expected
