"""Health of the data disk: room for the journal's next segments, and the latency of writes."""

from __future__ import annotations

import os
from pathlib import Path

from polynya.base.limits import JOURNAL_SEGMENT_BYTES, MIB
from polynya.observability.metrics import Samples
from polynya.system.disk_pace import DiskPace

LOW_BYTES = 2 * JOURNAL_SEGMENT_BYTES
LOW_FILES = 100  # a few segments, and two snapshots of each group


class DataDisk:
    """The data disk as one core sees it. `others_lead`: in a cluster, other nodes take leadership
    from a node with a full disk."""

    def __init__(self, folder: Path, pace: DiskPace, *, others_lead: bool) -> None:
        self._folder = folder
        self._pace = pace
        self._others_lead = others_lead

    def trouble(self) -> str:
        """Return the problem and its remedy, or ""."""
        return "; ".join(
            filter(None, (little_room(self._folder, full=self._pace.full), self._pace.trouble()))
        )

    def check(self) -> str | None:
        """Return the same with its effect, for node health."""
        room, pace = little_room(self._folder, full=self._pace.full), self._pace.trouble()
        if room:
            room += f"; {self._cost()}, and reads go on"
        return "; ".join(filter(None, (room, pace))) or None

    def samples(self) -> Samples:
        found = os.statvfs(self._folder)
        return {"polynya_disk_free_bytes": found.f_bavail * found.f_frsize}

    def _cost(self) -> str:
        if self._others_lead:
            return (
                "other nodes took over its leaderships"
                if self._pace.full
                else "when it is full, other nodes take over its leaderships"
            )
        return "appends get 507" if self._pace.full else "when it is full, appends get 507"


def little_room(folder: Path, *, full: bool = False) -> str:
    """Return a warning if little space or few inodes are left, else "". `full`: the journal found
    no room for its next file."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    # 0 total inodes: the file system has no fixed number
    if found.f_files and found.f_favail < LOW_FILES:
        return f"{found.f_favail} inodes are left in the file system of {folder}: remove files"
    if free >= LOW_BYTES:
        return ""
    segment = f"the journal takes {JOURNAL_SEGMENT_BYTES // MIB} at a time"
    left = f"{free / MIB:.0f} MiB are free in {folder}, and {segment}"
    return f"the disk is full ({left}): make room" if full else f"{left}: make room"
