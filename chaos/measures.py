"""Measure the resources of the nodes during a long run, and whether they grow: memory,
descriptors, and bytes on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

MIB = 1 << 20
# what may differ by chance
SLACK = {
    "rss": 64 * MIB,
    "fds": 40,
    "journal": 256 * MIB,
    "snapshots": 32 * MIB,
}
GROWTH_MAX = 1.25
SAMPLES_MIN = 8


class Sample(msgspec.Struct):
    """One sample of a node while the cluster is healthy. All sizes in bytes; `objects` counts all
    nodes together and grows with the data written."""

    at: float
    node: int
    rss: int
    fds: int
    journal: int
    snapshots: int
    objects: int


def measure(
    at: float, node: int, processes: Sequence[psutil.Process], data: Path, objects: Path
) -> Sample:
    rss = fds = 0
    for process in processes:
        with suppress(psutil.Error):
            rss += process.memory_info().rss
            fds += process.num_fds()
    return Sample(
        at,
        node,
        rss,
        fds,
        _bytes_in(data.glob("core-*/journal/*")),
        _bytes_in(data.glob("core-*/snapshots/*")),
        _bytes_in(objects.rglob("*")),
    )


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return the values that are larger in the last quarter than in the second, by more than
    chance; empty for a few samples."""
    found = []
    for node in sorted({sample.node for sample in samples}):
        mine = [sample for sample in samples if sample.node == node]
        if len(mine) < SAMPLES_MIN:
            continue
        quarter = len(mine) // 4
        before, after = mine[quarter : 2 * quarter], mine[-quarter:]
        for name, slack in SLACK.items():
            first, last = (
                max(getattr(sample, name) for sample in some) for some in (before, after)
            )
            if last > first * GROWTH_MAX + slack:
                found.append(f"growth: {name} of node {node} was {first:,} and is {last:,}")
    return found


def _bytes_in(paths: Iterable[Path]) -> int:
    """Return the bytes on disk: a journal is allocated before it is written."""
    total = 0
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            total += status.st_blocks * 512 if path.is_file() else 0
    return total
