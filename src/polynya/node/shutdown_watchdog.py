"""End a core process within a time limit, and log what delayed the shutdown.

The supervisor kills a hung core but cannot tell the cause. So the core acts a few seconds earlier.
It logs where each task and thread waits, and exits like a power failure, which loses no
acknowledged data.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from polynya.config.core_start import EXIT_STUCK

# from the first signal; the timeouts of a stop add up to 12 s when no other node answers
END_SECONDS = 15.0
TASKS_MAX = 50  # in the log
LOCATIONS_MAX = 8  # of one task or thread: the innermost
log = logging.getLogger("polynya.core")


class ShutdownWatchdog:
    """The shutdown watchdog of the process with this event loop. `begin` may be called again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began = 0.0

    def begin(self) -> None:
        """Start the time limit of `END_SECONDS`. A separate thread checks it, since the loop may
        hang."""
        if not self._began:
            self._began = time.monotonic()
            threading.Thread(target=self._watch, name="ending", daemon=True).start()

    def _watch(self) -> None:
        time.sleep(END_SECONDS)
        try:
            tasks = [
                f"{task.get_name()}: {waits_at(task)}"
                for task in asyncio.all_tasks(self._loop)
                if not task.done()
            ]
            threads = [
                f"{thread.name}: {stands_at(thread)}"
                for thread in threading.enumerate()
                if thread is not threading.current_thread()
            ]
            log.critical(
                "this core does not stop in time: exiting",
                extra={"tasks": sorted(tasks)[:TASKS_MAX], "threads": threads},
            )
        finally:
            os._exit(EXIT_STUCK)


def waits_at(task: asyncio.Task[Any]) -> str:
    """Return `file:line function` for each await of the task, outermost first."""
    locations: list[str] = []
    inner: Any = task.get_coro()
    while inner is not None:
        frame = (
            getattr(inner, "cr_frame", None)
            or getattr(inner, "gi_frame", None)
            or getattr(inner, "ag_frame", None)
        )
        if frame is not None:
            locations.append(_location(frame.f_code, frame.f_lineno))
        inner = (
            getattr(inner, "cr_await", None)
            or getattr(inner, "gi_yieldfrom", None)
            or getattr(inner, "ag_await", None)
        )
    return " > ".join(locations[-LOCATIONS_MAX:])


def stands_at(thread: threading.Thread) -> str:
    """Return the same for the stack of a thread."""
    locations: list[str] = []
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None and len(locations) < LOCATIONS_MAX:
        locations.append(_location(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return " > ".join(reversed(locations))


def _location(code: CodeType, line: int) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{line} {code.co_name}"
