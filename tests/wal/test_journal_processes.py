"""Real files and real processes: kill -9 of a writer, the lock, short writes."""

import os
from pathlib import Path

import pytest
from worlds.journal_process import SEGMENT_BYTES, kill_writer, start_writer

from polynya.wal import Journal, JournalLocked, OsFiles


@pytest.mark.process
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for turns in (1, 60, 200):
        writer, found = start_writer(tmp_path)
        assert found >= acknowledged and writer.stdout is not None
        for _ in range(turns):
            acknowledged = int(writer.stdout.readline())
        with pytest.raises(JournalLocked, match="in use by another process"):
            Journal.open(tmp_path, journal_id=7)
        acknowledged = kill_writer(writer, acknowledged)
    journal = Journal.open(tmp_path, journal_id=7, segment_bytes=SEGMENT_BYTES)
    entries = list(journal.segments.entries())
    assert [entry.index for entry in entries] == list(range(1, len(entries) + 1)) and len(
        entries
    ) >= acknowledged >= 1000
    assert all(entry.payload == b"%09d" % entry.index * (entry.index % 40) for entry in entries)
    assert len(journal.segments.sizes()) > 1
    journal.close()


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles()
    fd = files.create(tmp_path / "x")
    real, real_v = os.pwrite, os.pwritev
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, offset: real(fd, data[: max(1, len(data) // 2)], offset)
    )
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, offset: real_v(fd, [buffers[0], buffers[1][:3]], offset)
    )
    small = [b"ab", b"", b"cdefg"]
    files.write(fd, small, 10)
    assert files.read(fd, 100, 0) == bytes(10) + b"abcdefg"
    large = [bytes([i % 256]) * 1000 for i in range(2500)]
    files.write(fd, large, 5)
    assert files.read(fd, files.size(fd), 5) == b"".join(large)
    files.close(fd)


def test_folders_and_missing_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    journal = Journal.open(tmp_path / "a" / "b", journal_id=7, segment_bytes=4096)
    for index in range(1, 20):
        journal.stage(1, 1, index, 1, bytes(400))
        batch = journal.take()
        assert batch is not None
        journal.write(batch)
        journal.synced(batch)
    journal.close()
    journal = Journal.open(tmp_path / "a" / "b", journal_id=7, segment_bytes=4096)
    assert [entry.index for entry in journal.segments.entries()] == list(range(1, 20))
    journal.close()
