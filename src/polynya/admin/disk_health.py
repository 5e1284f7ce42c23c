"""How the disk of a node's data is: whether the journal has room for what it writes next, and whether writes take long."""

from __future__ import annotations

import os
from pathlib import Path

from polynya.base.limits import JOURNAL_SEGMENT_BYTES, MIB
from polynya.observability.metrics import Samples
from polynya.system.disk_pace import DiskPace

LOW_BYTES = 2 * JOURNAL_SEGMENT_BYTES
LOW_FILES = 100  # a few segments, and a snapshot of each group beside the one before


class DataDisk:
    """As one core sees it. `others_lead`: in a cluster others take over what a node with a full disk leads."""

    def __init__(self, folder: Path, pace: DiskPace, *, others_lead: bool) -> None:
        self._folder = folder
        self._pace = pace
        self._others_lead = others_lead

    def trouble(self) -> str:
        """What is wrong, and what to do; empty when it does well."""
        return "; ".join(filter(None, (little_room(self._folder, full=self._pace.full), self._pace.trouble())))

    def check(self) -> str | None:
        """The same with what it costs, for the health of the node."""
        room, pace = little_room(self._folder, full=self._pace.full), self._pace.trouble()
        if room:
            room += f"; {self._cost()}, and reads go on"
        return "; ".join(filter(None, (room, pace))) or None

    def samples(self) -> Samples:
        found = os.statvfs(self._folder)
        return {"polynya_disk_free_bytes": found.f_bavail * found.f_frsize}

    def _cost(self) -> str:
        if self._others_lead:
            return "others lead what this node led" if self._pace.full else "when it is full others lead what this node leads"
        return "appends get 507" if self._pace.full else "when it is full appends get 507"


def little_room(folder: Path, *, full: bool = False) -> str:
    """How much is left, where that is little. `full`: the journal has found no room for its next file."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if found.f_files and found.f_favail < LOW_FILES:  # file systems without a bound of their own say 0
        return f"{found.f_favail} more files fit into the file system of {folder} (its inodes are used up): remove some"
    if free >= LOW_BYTES:
        return ""
    segment = f"the journal takes {JOURNAL_SEGMENT_BYTES // MIB} at a time"
    left = f"{free / MIB:.0f} MiB are free in {folder}, and {segment}"
    return f"the disk is full ({left}): make room" if full else f"{left}: make room"
