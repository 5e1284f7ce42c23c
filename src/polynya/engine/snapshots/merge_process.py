"""Merge parts of group snapshots in a subprocess: `python -m polynya.engine.snapshots.merge_process
FOLDER`, jobs on stdin.

A merge touches every stream of a group. Even in a thread of the core's process it would delay
turns.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polynya.files import keep_private
from polynya.stream.snapshots import deltas
from polynya.wal.snapshots import SnapshotFile, SnapshotLink, SnapshotStore

MODULE = "polynya.engine.snapshots.merge_process"
NICENESS = 10
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")  # inherited environment
Job = tuple[int, int]  # group, number of parts to merge, from the chain's end


def merge(parts: Sequence[SnapshotFile]) -> bytes:
    """Merge the parts into one body."""
    return deltas.merge(
        [deltas.SnapshotPart(part.body, part.delta, not part.base) for part in parts]
    )


def due(links: Sequence[SnapshotLink]) -> int:
    """Return how many of the last parts to merge, 0 for none. Each part stays larger than all parts
    that build on it.

    So a chain's length, and the number of times that a byte is rewritten, grow with the logarithm
    of its size."""
    total, parts = links[-1].length, 0
    for count, link in enumerate(reversed(links[:-1]), 2):
        if link.length <= total:
            parts = count
        total += link.length
    return parts


async def fold_beside(store: SnapshotStore, jobs: Sequence[Job]) -> None:
    """Run all jobs in one subprocess, which has ended when this returns.

    Raises OSError on failure; each chain is then either unchanged or merged."""
    process = await asyncio.to_thread(_spawn, store.folder)
    try:
        _, err = await asyncio.to_thread(process.communicate, msgspec.json.encode(jobs))
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(asyncio.to_thread(process.wait))
    if process.returncode:
        raise OSError(
            f"snapshots could not be merged, exit code {process.returncode}: "
            f"{err[-2000:].decode(errors='replace').strip()}"
        )


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    """Start the subprocess, in a thread. `subprocess` avoids copying a large process's page tables,
    which would stall all turns."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={name: os.environ[name] for name in KEPT if name in os.environ},
    )


def main() -> int:
    """Run the jobs; stop early when the parent has exited, since another process may use the folder
    by then."""
    keep_private()
    os.nice(NICENESS)
    parent = os.getppid()
    store = SnapshotStore(Path(sys.argv[1]), tidy=False)
    for group, count in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job]):

        def merge_for_parent(parts: Sequence[SnapshotFile]) -> bytes:
            body = merge(parts)
            if os.getppid() != parent:
                raise SystemExit("the parent process has exited")
            return body

        store.fold(group, count, merge_for_parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
