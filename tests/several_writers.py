"""Processes that write the same files at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path


def write_at_once(write: Callable[[str, int], None], folder: Path, processes: int = 3) -> None:
    """`write(folder, number)` in each of so many processes; all have ended well when this returns."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(str(folder), number)) for number in range(processes)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
