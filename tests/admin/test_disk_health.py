"""A disk that is full, nearly full, slow or stuck: what a node says of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.admin.disk_health import DataDisk, little_room
from polynya.system.disk_pace import (
    HANGS_SECONDS,
    LAST_WRITES,
    RECENT_SECONDS,
    SLOW_SECONDS,
    DiskPace,
)
from polynya.wal import DiskFull

DURABLE: Any = SimpleNamespace(durable=True)
MARK: Any = SimpleNamespace(durable=False)


class Clock:
    """`seconds` pass when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Journal:
    """Each write takes `seconds`; `fault` is raised then."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds = 0.001
        self.fault: Exception | None = None

    def write(self, batch: object) -> None:
        self.clock.seconds += self.seconds
        if self.fault is not None:
            raise self.fault


def written(times: int, seconds: float, batch: Any = DURABLE) -> tuple[DiskPace, Any, Clock]:
    clock = Clock()
    pace, journal = DiskPace(clock), Journal(clock)
    journal.seconds = seconds
    for _ in range(times):
        pace.write(journal, batch)  # type: ignore[arg-type]
    return pace, journal, clock


def a_disk(monkeypatch: pytest.MonkeyPatch, mib: int, files: int = 1000) -> None:
    """Simulate a disk with this much free space."""
    found: Any = SimpleNamespace(f_bavail=mib, f_frsize=1 << 20, f_files=2000, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda folder: found)


def test_a_slow_disk_is_said_for_as_long_as_it_is_news() -> None:
    pace, journal, clock = written(LAST_WRITES, 3 * SLOW_SECONDS)
    assert pace.trouble() == "the disk is slow: the median write takes 0.3 s"
    assert pace.seconds == pytest.approx(LAST_WRITES * 3 * SLOW_SECONDS)
    clock.seconds += RECENT_SECONDS
    assert pace.trouble() == ""
    journal.seconds = 0.001
    for _ in range(LAST_WRITES):
        pace.write(journal, DURABLE)
    assert pace.trouble() == ""


@pytest.mark.parametrize(
    ("times", "seconds", "batch"),
    [(LAST_WRITES - 1, 1.0, DURABLE), (99, 0.5 * SLOW_SECONDS, DURABLE), (99, 1.0, MARK)],
)
def test_a_few_slow_writes_and_marks_without_an_fsync_make_no_slow_disk(
    times: int, seconds: float, batch: Any
) -> None:
    assert written(times, seconds, batch)[0].trouble() == ""


def test_a_disk_that_takes_nothing_is_said_while_it_does() -> None:
    pace, journal, clock = written(1, 0.001)
    said: list[str] = []

    def hang(batch: object) -> None:
        clock.seconds += HANGS_SECONDS + 4
        said.append(pace.trouble())

    journal.write = hang
    pace.write(journal, DURABLE)
    assert said == ["a disk write has been in flight for 6 s"] and pace.trouble() == ""


def test_that_the_disk_is_full_and_that_it_has_room_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    pace, journal, _ = written(1, 0.001)
    journal.fault = DiskFull("no room for the journal")
    for _ in range(3):
        with pytest.raises(DiskFull):
            pace.write(journal, DURABLE)
    journal.fault = None
    for _ in range(3):
        pace.write(journal, DURABLE)
    assert [record.getMessage() for record in caplog.records] == [
        "the disk is full",
        "the disk has room again",
    ]


def test_a_full_disk_is_told_from_one_that_soon_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, journal, _ = written(1, 0.001)
    alone, member = (
        DataDisk(tmp_path, pace, others_lead=False),
        DataDisk(tmp_path, pace, others_lead=True),
    )
    a_disk(monkeypatch, 4096)
    assert alone.check() is None and alone.samples() == {"polynya_disk_free_bytes": 4096 << 20}
    a_disk(monkeypatch, 42)
    left = f"42 MiB are free in {tmp_path}, and the journal takes 64 at a time"
    assert alone.check() == f"{left}: make room; when it is full, appends get 507, and reads go on"
    assert member.check() == (
        f"{left}: make room; when it is full, other nodes take over its leaderships, and "
        "reads go on"
    )
    journal.fault = DiskFull("no room")
    with pytest.raises(DiskFull):
        pace.write(journal, DURABLE)
    assert (
        alone.check() == f"the disk is full ({left}): make room; appends get 507, and reads go on"
    )
    assert member.trouble() == f"the disk is full ({left}): make room"
    a_disk(monkeypatch, 4096)
    assert alone.check() is None, "there is room: the next write finds it"


def test_a_file_system_that_takes_no_more_files_is_a_reason_though_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_disk(monkeypatch, 4096, files=7)
    assert "7 inodes are left" in little_room(tmp_path)
    # as btrfs says
    found: Any = SimpleNamespace(f_bavail=4096, f_frsize=1 << 20, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    assert little_room(tmp_path) == ""
