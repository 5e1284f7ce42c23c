"""Commands of the product in forks of one process that has imported them: a command costs its work,
without the start of a Python.

Each has its own arguments, environment, folder, and standard streams, and ends with an exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any, NoReturn

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
LONGEST_REQUEST = 64 << 10  # bytes: what one message of a socket surely holds
IMPORTED = (
    "httpx",
    "polynya.cli",
    "polynya.client",
    "polynya.cli.cluster.commands",
    "polynya.cli.remote.client",
    "polynya.cli.storage.backup",
    "polynya.cli.streams.append",
    "polynya.cli.streams.lifecycle",
    "polynya.cli.streams.read",
    "polynya.cli.streams.subscriptions",
    "polynya.cli.tables.commands",
)
HEAVY = {"compact", "demo", "lake", "serve", "sql", "table"}
PER_COMMAND = 4  # descriptors: the standard streams, and where its exit code is told


class WarmCommands:
    """The process that forks. It ends when this one does."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS)))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self._close)

    def run(
        self, arguments: tuple[str, ...], environment: dict[str, str], stdin: bytes, seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end. Raises TimeoutExpired, when it has been killed."""
        request = json.dumps([arguments, environment, os.getcwd()]).encode()
        with contextlib.ExitStack() as files:
            pipes = [[files.enter_context(each) for each in _pipe()] for _ in range(PER_COMMAND)]
            (to_read, feed), (out, to_out), (err, to_err), (told, to_tell) = pipes
            theirs = (to_read, to_out, to_err, to_tell)
            with self._turn:
                socket.send_fds(self._socket, [request], [each.fileno() for each in theirs])
            for each in theirs:
                each.close()
            return _end_of(("polynya", *arguments), stdin, seconds, (feed, out, err, told))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


def _end_of(
    command: tuple[str, ...], stdin: bytes, seconds: float, pipes: tuple[IO[bytes], ...]
) -> subprocess.CompletedProcess[bytes]:
    feed, out, err, told = pipes
    found: dict[IO[bytes], bytes] = {}
    pid = int(told.readline())

    def read(pipe: IO[bytes]) -> None:
        found[pipe] = pipe.read()

    def write() -> None:
        with feed, contextlib.suppress(BrokenPipeError):
            rest = memoryview(stdin)
            while rest:
                rest = rest[os.write(feed.fileno(), rest) :]

    threads = [
        threading.Thread(target=each, daemon=True)
        for each in (write, *(functools.partial(read, pipe) for pipe in (out, err, told)))
    ]
    for each in threads:
        each.start()
    deadline = time.monotonic() + seconds
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    if any(each.is_alive() for each in threads):
        os.kill(pid, signal.SIGKILL)
        for each in threads:
            each.join()
        raise subprocess.TimeoutExpired(command, seconds, found.get(out), found.get(err))
    return subprocess.CompletedProcess(command, int(found[told]), found[out], found[err])


def can_run(arguments: tuple[str, ...], variables: dict[str, str]) -> bool:
    """Return False for what a new Python does: it reads its own variables at its start. Commands
    of seconds do not notice its start."""
    short = sum(map(len, (*arguments, *os.environ, *os.environ.values()))) < LONGEST_REQUEST // 8
    return (
        short
        and not HEAVY & set(arguments[:1])
        and sys.platform == "linux"
        and not any(name.startswith(("PYTHON", "LD_")) for name in variables)
    )


@functools.cache
def commands_of(pid: int) -> WarmCommands:
    """The commands of one process of tests, which may be a fork itself."""
    assert pid == os.getpid()
    return WarmCommands()


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        _reap()
        request, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, PER_COMMAND)
        if not request:
            return
        if not os.fork():
            requests.close()
            _watch(json.loads(request), descriptors)
        for each in descriptors:
            os.close(each)


def _reap() -> None:
    """Wait for those that have ended: what they used counts as used by this process, too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(request: Any, descriptors: list[int]) -> NoReturn:
    """Fork the command, and tell its number, then its exit code."""
    *streams, tell = descriptors
    pid = os.fork()
    if not pid:
        os.close(tell)
        _carry_out(*request, streams)
    for each in streams:
        os.close(each)
    os.write(tell, b"%d\n" % pid)
    os.write(tell, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _carry_out(
    arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]
) -> NoReturn:
    code: object = 1
    try:
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv = ["polynya", *arguments]
        cli = importlib.import_module("polynya.cli")
        cli.main(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
