"""Measurements of the soak and their evaluation: samples of the node, and growth between samples."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench._soak_node import SPEED, Failed

MIB = 1 << 20
FIRST_PART = 0.4  # of a run: with restarts, and before everything is as large as it gets


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The node at one moment."""

    seconds: float
    appends: int  # acknowledged, in all
    resident: int
    files: int
    journal: int  # bytes
    disk: int  # bytes of the whole data folder, less the journal
    objects: int
    streams: int
    slices: int
    hot: int
    cache: int  # bytes of blocks, which grow to a bound that a short run does not reach

    @property
    def memory(self) -> int:
        """Return the resident bytes without the block cache."""
        return self.resident - self.cache


# what may not grow: (how it is called, how much it may rise beside 15 %, because it goes up and
# down by as much)
BOUNDS = {
    "memory": ("memory", 32 * MIB),
    "files": ("open files", 16),
    "journal": ("the journal", 192 * MIB),  # a segment and what snapshots wait for
    "disk": ("objects and snapshots on the disk", 64 * MIB),
    "objects": ("objects", 100),
    "streams": ("streams", 100),
    "slices": ("slices in the indexes", 1500),  # some tens a stream before they are merged
    "hot": ("hot bytes", 16 * MIB),
}
RISE = 1.15


def judge(samples: Sequence[Sample]) -> list[str]:
    """Report growth in the second part of the run: compare the maxima of its last half with those
    of its first."""
    steady = [sample for sample in samples if sample.seconds >= FIRST_PART * samples[-1].seconds]
    first, last = steady[: len(steady) // 2], steady[len(steady) // 2 :]
    found = []
    for field, (name, slack) in BOUNDS.items():
        before, after = (max(getattr(sample, field) for sample in some) for some in (first, last))
        if after > before * RISE + slack:
            found.append(f"{name} grew from {before:,} to {after:,}")
    return found


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the file sizes of a folder while files and folders in it come and go."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[os.path.join(path, name)] = os.stat(os.path.join(path, name)).st_size
    return found


def metric(text: str, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    if not found:
        raise Failed(f"there is no metric {name}")
    return int(float(found[1]))


HEADING = (
    "| day | appends/s | RSS MiB | files open | journal MiB | objects and snapshots MiB | objects "
    "| streams | slices | hot MiB |\n" + "|---" * 10 + "|"
)


def row(before: Sample, now: Sample) -> str:
    rate = (now.appends - before.appends) / max(now.seconds - before.seconds, 0.001)
    day = now.seconds * SPEED / 86400
    return (
        f"| {day:.1f} | {rate:,.0f} | {now.resident / MIB:.0f} | {now.files} | "
        f"{now.journal / MIB:.0f} | {now.disk / MIB:.0f} "
        f"| {now.objects} | {now.streams} | {now.slices:,} | {now.hot / MIB:.1f} |"
    )
