"""Merging the parts of groups' snapshots in a process of its own: `python -m polynya.engine.snapshots.merge_process FOLDER`, jobs on stdin (F12).

Merging touches every stream of a group; in the core's process, even in a thread, it would stand in the way of turns.
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
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD")  # of the environment
Job = tuple[int, int]  # group, how many of the last parts of its chain


def merge(parts: Sequence[SnapshotFile]) -> bytes:
    """One body for all of them."""
    return deltas.merge([deltas.SnapshotPart(part.body, part.delta, not part.base) for part in parts])


def due(links: Sequence[SnapshotLink]) -> int:
    """How many of the last parts are to become one, so that each part is larger than all that build on it: the chain has a length of the
    logarithm of its size, and each byte is written again as often as that. 0: none."""
    total, parts = links[-1].length, 0
    for count, link in enumerate(reversed(links[:-1]), 2):
        if link.length <= total:
            parts = count
        total += link.length
    return parts


async def fold_beside(store: SnapshotStore, jobs: Sequence[Job]) -> None:
    """All jobs in one process; it is gone when this returns, however it returns. Raises OSError when it failed: every chain is then the one
    of before, or the new one."""
    process = await asyncio.to_thread(_spawn, store.folder)
    try:
        _, err = await asyncio.to_thread(process.communicate, msgspec.json.encode(jobs))
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(asyncio.to_thread(process.wait))
    if process.returncode:
        raise OSError(f"snapshots could not be merged, exit code {process.returncode}: {err[-2000:].decode(errors='replace').strip()}")


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    """In a thread, and by `subprocess`: that does not copy the page tables of a large process, for which all turns would wait."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={name: os.environ[name] for name in KEPT if name in os.environ},
    )


async def fold_here(store: SnapshotStore, jobs: Sequence[Job]) -> None:
    """The same without a process, for stores that only this one sees."""
    for group, count in jobs:
        store.fold(group, count, merge)


def main() -> int:
    """Ends early when whoever gave the jobs is gone: somebody else may use the folder by now."""
    keep_private()
    os.nice(NICENESS)
    parent = os.getppid()
    store = SnapshotStore(Path(sys.argv[1]), tidy=False)
    for group, count in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job]):

        def merge_for_parent(parts: Sequence[SnapshotFile]) -> bytes:
            body = merge(parts)
            if os.getppid() != parent:
                raise SystemExit("who asked for this is gone")
            return body

        store.fold(group, count, merge_for_parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
