"""An event loop without a world: time passes only when nothing is left to do now, and threads are
none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from heapq import heapify, heappush
from itertools import count
from random import Random
from typing import Any, Protocol


class Slowed(Protocol):
    """A process."""

    slow_seconds: float
    over: bool


# which node, and which life of it, runs
PROCESS: ContextVar[Slowed | None] = ContextVar("PROCESS", default=None)


class SimTask(asyncio.Task[Any]):
    """A task of a process. `number`: how many began before it."""

    process: Slowed | None = None
    number = 0


class SimLoop(asyncio.BaseEventLoop):
    """The same calls in the same order give the same run: what asyncio does in between is decided
    by its queue and heap alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.scheduled = 0  # calls, so far: what this run did
        self._selector = self
        self.turn_seconds = 0.0  # that each pass of the loop takes in which something is to be done
        self._held: dict[
            Slowed | None, tuple[list[asyncio.Handle], list[asyncio.TimerHandle]]
        ] = {}  # processes that stand still
        self._threads = _Inline(self)
        self._default_executor = self._threads  # type: ignore[assignment]
        self.faults: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self._note_fault(context))
        self._begun = count()
        self.set_task_factory(self._begin)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self.scheduled += 1
        handle = super().call_soon(callback, *args, context=context)
        if self._held and (held := self._held.get(_process_of(handle))) is not None:
            held[0].append(self._ready.pop())  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.scheduled += 1
        handle = super().call_at(when, callback, *args, context=context)
        if self._held and (held := self._held.get(_process_of(handle))) is not None:
            held[1].append(handle)
            self._scheduled.remove(handle)  # type: ignore[attr-defined]
            heapify(self._scheduled)  # type: ignore[attr-defined]
        return handle

    def hold(self, process: Slowed) -> None:
        """Suspend a process: its callbacks and timers wait."""
        ready, timers = self._held[process] = ([], [])
        for index, handle in enumerate(self._ready):  # type: ignore[attr-defined]
            if _process_of(handle) is process:
                ready.append(handle)
                self._ready[index] = _nothing(self)  # type: ignore[attr-defined]  # a pass of the loop has counted them
        timers += [handle for handle in self._scheduled if _process_of(handle) is process]  # type: ignore[attr-defined]
        self._scheduled = [
            handle for handle in self._scheduled if _process_of(handle) is not process
        ]  # type: ignore[attr-defined, has-type]
        heapify(self._scheduled)

    def release(self, process: Slowed, *, timers_first: bool) -> None:
        """Resume a process: first with the timers that became due, or with the callbacks that
        arrived."""
        ready, timers = self._held.pop(process)
        if not timers_first:
            self._ready.extend(ready)  # type: ignore[attr-defined]
        for handle in sorted(timers):
            if handle.when() <= self.now and not handle.cancelled():
                handle._scheduled = False  # type: ignore[attr-defined]
                self._ready.append(handle)  # type: ignore[attr-defined]
            else:
                heappush(self._scheduled, handle)
        if timers_first:
            self._ready.extend(ready)  # type: ignore[attr-defined]

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        self.now += timeout or self.turn_seconds
        return []

    def _begin(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any
    ) -> SimTask:
        task = SimTask(work, loop=loop, **more)
        context = more.get("context")
        task.process = PROCESS.get() if context is None else context.get(PROCESS)
        task.number = next(self._begun)
        return task

    def _note_fault(self, context: dict[str, Any]) -> None:
        """Record a loop fault. A task that is freed before its end is its creator's fault, unless
        the process is dead."""
        task = context.get("task")
        process = task.process if isinstance(task, SimTask) else None
        if process is None or not process.over:
            self.faults.append(context)

    def slow_threads(self, random: Random, seconds: float) -> None:
        """Delay work in threads from now on: its caller learns of the end later."""
        self._threads.slow(random, seconds)

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Inline(Executor):
    """An executor that runs work inline and reports the end at once or after a delay."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._random, self._seconds = Random(), 0.0

    def slow(self, random: Random, seconds: float) -> None:
        self._random, self._seconds = random, seconds

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            tell = partial(future.set_result, work(*args, **more))
        except BaseException as fault:
            tell = partial(future.set_exception, fault)
        process = PROCESS.get()
        seconds = max(self._seconds, process.slow_seconds if process is not None else 0.0)
        if seconds:
            self._loop.call_later(self._random.uniform(0.0, seconds), _complete, future, tell)
        else:
            tell()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def in_order(tasks: Iterable[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Sort tasks by the order in which they began: that of a set is by chance."""
    return sorted(tasks, key=lambda task: task.number if isinstance(task, SimTask) else -1)


def _process_of(handle: asyncio.Handle) -> Slowed | None:
    return handle._context.get(PROCESS)  # type: ignore[attr-defined, no-any-return]


def _nothing(loop: asyncio.AbstractEventLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    return handle


def _complete(future: Future[Any], tell: Callable[[], None]) -> None:
    if not future.cancelled():
        tell()


def run_simulated(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end in virtual time. Raises faults that were not caught."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(work)
        for context in loop.faults:
            raise AssertionError(context["message"]) from context.get("exception")
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
