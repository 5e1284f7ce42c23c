"""Pytest plugin: a test without a mark for processes fails if test code sleeps on a real clock, also
by waiting in vain for a `threading.Event`.

Product code may sleep, and so may `polling.py`. On a virtual loop (`sim/loop.py`) a sleep takes no
time."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sim.loop import SimLoop
from tiers.process_watch import is_of_processes

TESTS = Path(__file__).parent
POLLING = str(TESTS / "polling.py")
ADVICE = (
    "wait for what is to happen: an event, a future, `polling.wait_until` or `polling.wait_for`, "
    "or run on the virtual loop of `sim.loop.run_simulated`"
)


class SleepGuard:
    """A guard that replaces `time.sleep`, `asyncio.sleep` and `threading.Event.wait` while the
    process lives. It records each call by code in the folder of tests, and fails that test."""

    def __init__(self, tests: Path = TESTS) -> None:
        self._tests = f"{tests}/"
        self._active = False
        self._calls: list[str] = []

    def install(self) -> Callable[[], None]:
        """Patch the modules; return a function that undoes it."""
        blocking, on_loop, waiting = time.sleep, asyncio.sleep, threading.Event.wait

        @functools.wraps(blocking)
        def sleep(seconds: float) -> None:
            if self._active and seconds > 0:
                self._note("time.sleep", seconds, sys._getframe(1))
            blocking(seconds)

        # a plain function: in a coroutine the caller's frame would be that of the loop
        @functools.wraps(on_loop)
        def async_sleep(delay: float, result: Any = None) -> Any:
            if self._active and delay > 0 and not _is_virtual():
                self._note("asyncio.sleep", delay, sys._getframe(1))
            return on_loop(delay, result)

        @functools.wraps(waiting)
        def wait(event: threading.Event, timeout: float | None = None) -> bool:
            happened = waiting(event, timeout)
            if self._active and not happened and timeout and _is_main():
                self._note("Event.wait", timeout, sys._getframe(1))
            return happened

        def patch(blocking: Any, on_loop: Any, waiting: Any) -> None:
            time.sleep, asyncio.sleep = blocking, on_loop
            threading.Event.wait = waiting  # type: ignore[method-assign]

        patch(sleep, async_sleep, wait)

        def undo() -> None:
            patch(blocking, on_loop, waiting)

        return undo

    def _note(self, call: str, seconds: float, caller: FrameType) -> None:
        path = caller.f_code.co_filename
        if path.startswith(self._tests) and path != POLLING:
            where = f"{path.removeprefix(self._tests)}:{caller.f_lineno}"
            self._calls.append(f"{where}: {call}({seconds:g})")

    def pytest_configure(self, config: pytest.Config) -> None:
        config.add_cleanup(self.install())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self._active = not is_of_processes(item)
        yield from self._checked()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        yield from self._checked()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        try:
            yield from self._checked()
        finally:
            self._active = False

    def _checked(self) -> Generator[None, None, None]:
        self._calls.clear()
        yield
        if self._calls:
            calls = ", ".join(dict.fromkeys(self._calls))
            pytest.fail(f"a test in this process slept on a real clock: {calls}; {ADVICE}", False)


def _is_main() -> bool:
    """Report whether a test waits here; a thread that it started may pause between two rounds."""
    return threading.current_thread() is threading.main_thread()


def _is_virtual() -> bool:
    try:
        return isinstance(asyncio.get_running_loop(), SimLoop)
    except RuntimeError:  # no loop runs yet: `asyncio.run(asyncio.sleep(1))`
        return False
