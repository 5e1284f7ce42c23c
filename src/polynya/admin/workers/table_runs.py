"""The runs of tables of a node (sync, rebuild, replay): a queue on core 0, and one process at a time.

A run is the `polynya table` command itself, as a child of core 0 that talks to the admin port of its own
node. So it needs no token; the node has judged the caller's right on the table before, and the command
names that table alone. It is killed with its process group when it takes too long, when it does not end
after a cancellation, and with the core. The runs that have ended are kept in memory, until the core stops.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    TABLE_RUN_LINE_CHARACTERS_MAX,
    TABLE_RUN_LINES_MAX,
    TABLE_RUNS_KEPT_MAX,
    TABLE_RUNS_WAITING_MAX,
)
from polynya.front.http.api.table_runs import (
    CANCELLED,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    Run,
    Wanted,
)
from polynya.front.http.protocol.errors import Failure

GRACE_SECONDS = 20.0  # for a cancelled command to release its job
MESSAGE_LINES = 2  # a refusal of the command and its hint


class Child(Protocol):
    """The process of a run."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield what it prints, until it ends or closes its output."""
        ...

    async def wait(self) -> int:
        """Return its exit code, negative after a signal."""
        ...

    def terminate(self) -> None:
        """Ask it to stop."""
        ...

    def kill(self) -> None:
        """Kill it and its children; nothing if they have ended."""
        ...


Launch = Callable[[Wanted], Awaitable[Child]]
"""Starts the process of a run. Raises PolynyaError, OSError."""


class TableRuns:
    """The runs of a node; a `polynya.front.http.api.table_runs.Runs`. `run` works on them, until it is
    cancelled."""

    def __init__(self, launch: Launch, seconds: float, now_ms: Callable[[], float]) -> None:
        """Create the queue. `seconds` is the timeout of a run."""
        self._launch = launch
        self._seconds = seconds
        self._now_ms = now_ms
        self._runs: dict[str, Run] = {}  # by id, the oldest first
        self._waiting: deque[tuple[Run, Wanted]] = deque()
        self._child: Child | None = None
        self._cancelled = ""  # the id of the running one, once it is asked to stop
        self._kill: asyncio.TimerHandle | None = None
        self._asked = asyncio.Event()

    async def start(self, wanted: Wanted) -> Run:
        for run, other in self._waiting:
            if (other.uid, other.verb, other.arguments) == (
                wanted.uid,
                wanted.verb,
                wanted.arguments,
            ):
                return run
        if len(self._waiting) >= TABLE_RUNS_WAITING_MAX:
            raise Failure("TABLE_RUNS_FULL")
        run = Run(
            id=secrets.token_hex(8),
            verb=wanted.verb,
            table=wanted.table,
            uid=wanted.uid,
            caller=wanted.caller,
            asked_ms=int(self._now_ms()),
        )
        self._runs[run.id] = run
        self._waiting.append((run, wanted))
        self._asked.set()
        self._forget()
        return run

    async def found(self, uid: int) -> list[Run]:
        return [run for run in reversed(self._runs.values()) if run.uid == uid]

    async def cancel(self, uid: int, run: str) -> Run:
        found = self._runs.get(run)
        if found is None or found.uid != uid:
            raise Failure("TABLE_RUN_NOT_FOUND")
        if found.state == QUEUED:
            self._waiting = deque(each for each in self._waiting if each[0] is not found)
            self._end(found, CANCELLED, "cancelled before it began")
        elif found.state == RUNNING and self._cancelled != found.id:
            self._cancelled = found.id
            self._stop()
        return found

    async def run(self) -> None:
        """Run what is asked for, one after the other, until cancelled."""
        while True:
            while not self._waiting:
                self._asked.clear()
                await self._asked.wait()
            await self._run_one(*self._waiting.popleft())

    async def _run_one(self, run: Run, wanted: Wanted) -> None:
        run.state, run.started_ms = RUNNING, int(self._now_ms())
        try:
            async with asyncio.timeout(self._seconds):
                code = await self._ran(run, wanted)
        except TimeoutError:
            limit = f"{self._seconds:g} s (lake.run_timeout)"
            self._end(run, FAILED, f"stopped after {limit}; what was committed stays")
        except (PolynyaError, OSError) as fault:
            self._end(run, FAILED, f"it did not start: {fault}")
        except BaseException:
            self._end(run, CANCELLED, "the node stops")
            raise
        else:
            was_cancelled = self._cancelled == run.id
            state = CANCELLED if was_cancelled and code else FAILED if code else DONE
            lines = MESSAGE_LINES if state == FAILED else 1
            said = " ".join(line.strip() for line in run.log[-lines:]) if code else ""
            self._end(run, state, said or run.message or f"exit code {code}")
        finally:
            if self._kill is not None:
                self._kill.cancel()
            self._kill, self._cancelled = None, ""

    async def _ran(self, run: Run, wanted: Wanted) -> int:
        """Return the exit code of the run's process. It has ended when this returns or raises."""
        child = self._child = await self._launch(wanted)
        if self._cancelled:
            self._stop()
        try:
            tail = LogTail(run.log)
            async for piece in child.pieces():
                tail.add(piece)
                run.message = run.log[-1].strip() if run.log else ""
            return await child.wait()
        finally:
            self._child = None
            child.kill()
            await asyncio.shield(child.wait())

    def _stop(self) -> None:
        """Stop the running process, if it has started."""
        if self._child is not None:
            self._child.terminate()
            loop = asyncio.get_running_loop()
            self._kill = loop.call_later(GRACE_SECONDS, self._child.kill)

    def _end(self, run: Run, state: str, message: str) -> None:
        run.state, run.message = state, message[: MESSAGE_LINES * TABLE_RUN_LINE_CHARACTERS_MAX]
        run.ended_ms = int(self._now_ms())

    def _forget(self) -> None:
        """Remove the oldest runs that have ended."""
        ended = [run.id for run in self._runs.values() if run.has_ended]
        for each in ended[: max(0, len(self._runs) - TABLE_RUNS_KEPT_MAX)]:
            del self._runs[each]


class LogTail:
    """Appends printed bytes to a list of lines. It keeps the last lines, each cut to a length."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._open = False  # the last line has no end yet

    def add(self, piece: bytes) -> None:
        """Add bytes. A character on the border of two pieces is replaced."""
        text = piece.decode(errors="replace").replace("\r\n", "\n")
        for line in text.splitlines(keepends=True):
            begun = self._lines.pop() if self._open else ""
            whole = (begun + line.rstrip("\r\n"))[:TABLE_RUN_LINE_CHARACTERS_MAX]
            self._open = not line.endswith(("\r", "\n"))
            if whole.strip() or self._open:
                self._lines.append(whole)
        del self._lines[:-TABLE_RUN_LINES_MAX]
