"""One life of a simulated node: what runs of it is known by its context, so that all of it can
stand still, as after SIGSTOP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any, TypeVar

from sim.loop import PROCESS, SimLoop

Result = TypeVar("Result")
NOBODY = Context()  # of what is no node: the network between them, the object store, the driver


class Process:
    """A simulated process. It owns the callbacks, tasks and timers that start in `run`, and all
    that they start."""

    def __init__(self) -> None:
        self.slow_seconds = 0.0  # that its threads are held up by the disk, at most
        self.over = False  # it has died
        self._context = Context()
        self._context.run(PROCESS.set, self)
        self._resumed: asyncio.Future[None] | None = None

    @property
    def still(self) -> bool:
        return self._resumed is not None

    def run(self, work: Callable[[], Result]) -> Result:
        """Run at once, even while the process is suspended: for outside observers."""
        return self._context.copy().run(work)

    def hand(self, work: Callable[[], object]) -> None:
        """Hand over a callback: it runs at once or after the suspension."""
        if self.still:
            asyncio.get_running_loop().call_soon(work, context=self._context.copy())
        else:
            self.run(work)

    def stop(self) -> None:
        """Suspend the process. Its clocks run on; incoming work waits."""
        if not self.still:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimLoop)
            self._resumed = loop.create_future()
            loop.hold(self)

    def go_on(self, *, timers_first: bool = False) -> None:
        """Resume the process: all waiting work happens now."""
        if self._resumed is not None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimLoop)
            loop.release(self, timers_first=timers_first)
            self._resumed.set_result(None)
            self._resumed = None

    async def drive(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await a client's work inside this process: its steps belong to the process and queue up
        while that is suspended."""
        return await self._driven(work)

    @coroutine
    def _driven(self, work: Coroutine[Any, Any, Result]) -> Generator[Any, None, Result]:
        fault: BaseException | None = None
        context = self._context.copy()
        while True:
            try:
                if fault is not None:
                    waits_for = context.run(work.throw, fault)
                elif self.still:
                    waits_for, ended = yield from self._later(work)
                    if ended is not None:
                        raise ended
                else:
                    waits_for = context.run(work.send, None)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except _Left as left:
                fault = left.__cause__
                continue
            fault = None
            try:
                yield waits_for
            except BaseException as caught:
                fault = caught

    def _later(
        self, work: Coroutine[Any, Any, Any]
    ) -> Generator[Any, None, tuple[Any, BaseException | None]]:
        """Run one step once the process runs: the awaited value or the end. Raises `_Left` when
        the client has stopped waiting."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Any] = loop.create_future()
        task = asyncio.current_task()
        assert task is not None

        def step() -> None:
            if not turn.done():
                asyncio.tasks._enter_task(loop, task)  # type: ignore[attr-defined]  # time limits ask whose they are
                try:
                    turn.set_result((work.send(None), None))
                except BaseException as fault:
                    turn.set_result((None, fault))
                finally:
                    asyncio.tasks._leave_task(loop, task)  # type: ignore[attr-defined]

        self.hand(step)
        try:
            return (yield from turn)
        except BaseException as caught:
            raise _Left from caught


class _Left(Exception):
    """A client waits no more, because of its cause."""
