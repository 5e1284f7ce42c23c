"""Cores and nodes in forks of a process that has imported them: a start costs its work, without
the start of a Python.

Each is a session of its own with its own standard streams, and its parent waits for it: signals,
`kill -9` and exit codes are as those of any process. Only what `/proc` tells of its command line
and its environment is that of the first process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, NoReturn

from polling import wait_until
from warm_commands import serve_arguments

from polynya.cli import main as run_command
from polynya.cli.cluster import dev_nodes
from polynya.config.core_start import die_with_parent
from polynya.node import core_process
from polynya.node.supervisor import ENTRY
from polynya.observability import process

STANDARD = (0, 1, 2)
ENDING_SECONDS = 1.0  # of a thread, on a busy machine; a new Python costs as much


def fork_cores(entry: str = ENTRY, main: Callable[[], int] = core_process.main) -> None:
    """Let the supervisor that this process becomes fork its cores, which run `main`."""
    started = asyncio.create_subprocess_exec

    async def start(*command: str, **more: Any) -> Any:
        forks = command[1:] == ("-m", entry) and can_fork()
        return ForkedCore(main, **more) if forks else await started(*command, **more)

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]


def fork_nodes() -> None:
    """Let the `cluster dev` that this process becomes fork its nodes."""

    def start(command: list[str], **more: Any) -> Any:
        return (ForkedNode if can_fork() else subprocess.Popen)(command, **more)

    dev_nodes.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=start, DEVNULL=subprocess.DEVNULL
    )


def can_fork(seconds: float = ENDING_SECONDS) -> bool:
    """Return False where a native library has threads, as the client of S3 has: a fork would have
    their locks and not them. A thread that has ended for Python, also a joined one, is among the
    kernel's for a moment longer: those are waited for."""
    with suppress(AssertionError):
        return wait_until(_knows_its_threads, what="threads to end", seconds=seconds, pause=0.002)
    return False


def _knows_its_threads() -> bool:
    return len(os.listdir("/proc/self/task")) == threading.active_count()


class Forked:
    """A child that is a fork; `returncode` as that of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)


class ForkedCore(Forked):
    """A core, with what the supervisor uses of `asyncio.subprocess.Process`."""

    def __init__(
        self,
        main: Callable[[], int],
        *,
        stdin: int,
        stdout: int,
        pass_fds: tuple[int, ...],
        start_new_session: bool,
    ) -> None:
        assert stdin == subprocess.PIPE and start_new_session
        record, self._record = os.pipe()
        pid = forked(main, (record, stdout, 2), keep=pass_fds)
        os.close(record)
        super().__init__(pid)
        self.stdin = self
        self._ended = asyncio.Event()
        self._handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._handle, self._has_ended)

    def write(self, record: bytes) -> None:
        """Write the start record. The pipe stays open: its end tells that the supervisor died."""
        os.write(self._record, record)

    async def wait(self) -> int:
        await self._ended.wait()
        code = self.poll()
        assert code is not None
        return code

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        os.close(self._record)
        self._ended.set()


class ForkedNode(Forked):
    """A node, by its start.sh, with what `cluster dev` uses of `subprocess.Popen`."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int,
        stdout: Any,
        stderr: Any,
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        assert stdin == subprocess.DEVNULL and start_new_session
        arguments = serve_arguments(Path(command[-1]))
        parent = os.getpid()

        def serve() -> int:
            die_with_parent(parent)
            os.environ.clear()
            os.environ.update(env)
            fork_cores()
            run_command(arguments)

        nothing = os.open(os.devnull, os.O_RDONLY)
        super().__init__(forked(serve, (nothing, stdout.fileno(), stderr.fileno())))
        os.close(nothing)


def forked(
    work: Callable[[], int], streams: tuple[int, int, int], keep: tuple[int, ...] = ()
) -> int:
    """Fork a session of its own that does the work and ends; return its pid once it is that."""
    ready, notify_fd = os.pipe()
    flush()
    pid = os.fork()
    if not pid:
        become(work, streams, keep, notify_fd)
    os.close(notify_fd)
    os.read(ready, 1)
    os.close(ready)
    return pid


def become(
    work: Callable[[], int], streams: tuple[int, int, int], keep: tuple[int, ...], notify_fd: int
) -> NoReturn:
    """Leave all behind that a new process would not have, and do the work."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asyncio._set_running_loop(None)
        os.write(notify_fd, b"!")
        take_streams(streams)
        close_all_but((*STANDARD, *keep))
        process._STARTED = time()
        code = work()
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def take_streams(streams: tuple[int, ...]) -> None:
    for number, each in enumerate([os.dup(each) for each in streams]):
        os.dup2(each, number)
        os.close(each)


def close_all_but(kept: tuple[int, ...]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with suppress(OSError):  # that of the folder itself
                os.close(number)


def exit_code(end: SystemExit) -> int:
    """Return the exit code, and print a reason as Python does."""
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
