"""Processes that write the same files at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path


def write_at_once(write: Callable[[str, int], None], folder: Path, processes: int = 3) -> None:
    """Run `write(folder, number)`, a module's function, in each of that many processes, and wait
    until all have succeeded."""
    # a fork of a test process, which has threads, may hang
    context = multiprocessing.get_context("spawn")
    all_there = context.Barrier(processes)
    writers = [
        context.Process(target=_begin, args=(all_there, write, str(folder), number))
        for number in range(processes)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0


def _begin(all_there: Barrier, write: Callable[[str, int], None], folder: str, number: int) -> None:
    all_there.wait(120)
    write(folder, number)
