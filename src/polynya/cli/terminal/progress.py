"""Progress lines on stderr, on terminals only: redrawn in place and cleared at the end."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from polynya.cli.terminal import output

DRAWN_SECONDS = 0.12
FIRST_SECONDS = 0.3  # shorter operations show nothing
BAR_WIDTH = 16
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLEAR = "\r\x1b[K"


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return True if stderr is a terminal with cursor control."""
    return (stream or sys.stderr).isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Live:
    """A line that `describe` renders repeatedly from the elapsed seconds. Notices are printed above
    it."""

    def __init__(
        self,
        describe: Callable[[float], str],
        *,
        stream: TextIO | None = None,
        shown: bool | None = None,
    ) -> None:
        self._describe = describe
        self._stream = stream or sys.stderr
        self._shown = is_terminal(self._stream) if shown is None else shown
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Live:
        if self._shown and output.above is None:
            output.above = self.say
            self._thread = threading.Thread(target=self._keep, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            output.above = None
            self._clear()

    def say(self, text: str) -> None:
        """Print a line above."""
        with self._lock:
            self._clear()
            self._stream.write(text + "\n")
            self._stream.flush()

    def draw(self) -> None:
        """Draw the line."""
        frame = _FRAMES[int((time.monotonic() - self._began) / DRAWN_SECONDS) % len(_FRAMES)]
        line = f"{frame} {self._describe(time.monotonic() - self._began)}"
        with self._lock:
            self._stream.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
            self._stream.flush()
            self._drawn = True

    def _keep(self) -> None:
        pause = FIRST_SECONDS
        while not self._ended.wait(pause):
            self.draw()
            pause = DRAWN_SECONDS

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._drawn = False


class Bar:
    """A progress bar of a known total. `advance` may be called from any thread."""

    def __init__(
        self, what: str, total: int, spelled: Callable[[float], str], *, shown: bool | None = None
    ) -> None:
        self._what = what
        self._total = max(total, 1)
        self._spelled = spelled
        self._done = 0
        self._lock = threading.Lock()
        self._live = Live(self.text, shown=shown)

    def __enter__(self) -> Bar:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount

    def text(self, seconds: float) -> str:
        """Render the bar at `seconds` after the start."""
        part = min(1.0, self._done / self._total)
        filled = round(part * BAR_WIDTH)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        rate = self._done / seconds if seconds > 0 else 0.0
        left = (
            f", {spelled_seconds((self._total - self._done) / rate)} left"
            if rate and self._done < self._total
            else ""
        )
        return (
            f"{self._what} {bar} {part:4.0%}  {self._spelled(self._done)} of "
            f"{self._spelled(self._total)}{left}, {self._spelled(rate)}/s"
        )


@contextmanager
def steps(what: str) -> Iterator[Callable[[str], None]]:
    """Show the current step and its duration. Yields a function that names the next step."""
    doing = [what]
    since = [0.0]
    began = time.monotonic()

    def next_step(name: str) -> None:
        doing[0], since[0] = name, time.monotonic() - began

    with Live(
        lambda seconds: (
            f"{doing[0]}  {spelled_seconds(seconds - since[0])} (of {spelled_seconds(seconds)})"
        )
    ):
        yield next_step


def spelled_seconds(seconds: float) -> str:
    """Format a duration: `9 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
