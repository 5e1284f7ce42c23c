"""How a core process ends: in bounded time, and what held it up is in its log.

The supervisor kills a core that does not stop, and can then only say that it did. So a core looks after itself: some seconds before that it
says where each of its tasks and its threads waits, and ends as a power cut would end it, which loses nothing that was acknowledged.
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

END_SECONDS = 15.0  # from the first signal on; what a stop waits for is bounded, and adds up to 12 s with nobody there who answers
TASKS_MAX = 50  # in the log
PLACES_MAX = 8  # of one task or thread: the innermost
log = logging.getLogger("polynya.core")


class ShutdownWatchdog:
    """Of the process whose loop is `loop`. `begin` may be called again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began = 0.0

    def begin(self) -> None:
        """The process was told to stop: from now on it has `END_SECONDS`. A thread of its own looks: the loop may be what hangs."""
        if not self._began:
            self._began = time.monotonic()
            threading.Thread(target=self._watch, name="ending", daemon=True).start()

    def _watch(self) -> None:
        time.sleep(END_SECONDS)
        try:
            tasks = [f"{task.get_name()}: {waits_at(task)}" for task in asyncio.all_tasks(self._loop) if not task.done()]
            threads = [
                f"{thread.name}: {stands_at(thread)}" for thread in threading.enumerate() if thread is not threading.current_thread()
            ]
            log.critical(
                "this core does not come to its end: it is cut off", extra={"tasks": sorted(tasks)[:TASKS_MAX], "threads": threads}
            )
        finally:
            os._exit(EXIT_STUCK)


def waits_at(task: asyncio.Task[Any]) -> str:
    """`file:line function` of each await that it is in, the outermost first."""
    places: list[str] = []
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            places.append(_place(frame.f_code, frame.f_lineno))
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None) or getattr(inner, "ag_await", None)
    return " > ".join(places[-PLACES_MAX:])


def stands_at(thread: threading.Thread) -> str:
    """Likewise, of a thread."""
    places: list[str] = []
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None and len(places) < PLACES_MAX:
        places.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return " > ".join(reversed(places))


def _place(code: CodeType, line: int) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-3:])}:{line} {code.co_name}"
