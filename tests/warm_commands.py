"""Commands of the product in forks of one process that has imported them: a command costs its work,
without the start of a Python.

Each has its own arguments, environment, folder, and standard streams, and ends with an exit code.
Nodes and clusters that go on are a session of their own, which ends with the tests (`warm_nodes`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from tiers.process_starts import note_process

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
LONGEST_REQUEST = 64 << 10  # bytes: what one message of a socket surely holds
IMPORTED = (
    "encodings.idna",
    "httpcore",  # the first client imports it
    "httpx",
    "polynya.cli",
    "polynya.client",
    "polynya.client.routing",
    "polynya.cli.cluster.commands",
    "polynya.cluster.discovery",
    "polynya.cli.remote.client",
    "polynya.cli.streams.append",
    "polynya.cli.streams.lifecycle",
    "polynya.cli.streams.read",
    "polynya.cli.streams.subscriptions",
    "polynya.cli.tables.commands",
    "warm_nodes",
)
HEAVY = {("compact",), ("demo",), ("lake",), ("table", "sync"), ("table", "merge")}
NATIVE = {"--local"}  # with threads of native libraries
TAG = "TEST_WORLD"  # in the environment of all processes of a world, and the name of its forks
PRODUCT = "polynya.cli"
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
        """Run a command to its end. Raises TimeoutExpired after killing it."""
        with contextlib.ExitStack() as files:
            pipes = [[files.enter_context(each) for each in _pipe()] for _ in range(3)]
            (to_read, feed), (out, to_out), (err, to_err) = pipes
            theirs = (to_read, to_out, to_err)
            numbers = (each.fileno() for each in theirs)
            process = self.start(arguments, environment, *numbers, tag=environment.get(TAG, ""))
            for each in theirs:
                each.close()
            return _end_of(process, stdin, seconds, (feed, out, err))

    def start(
        self,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        *streams: int,
        goes_on: bool = False,
        tag: str = "",
        module: str = PRODUCT,
    ) -> WarmProcess:
        """Start a command with these standard streams: `main(arguments)` of the module. A
        long-running one leads a session and dies with this process; `tag` is the name of its
        processes."""
        note_process()
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        request = json.dumps([arguments, environment, os.getcwd(), goes_on, tag, priority, module])
        reader, writer = _pipe()
        with writer, self._turn:
            socket.send_fds(self._socket, [request.encode()], [*streams, writer.fileno()])
        return WarmProcess(arguments, reader)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


class WarmProcess:
    """A command in a fork, with what the tests use of `subprocess.Popen`."""

    def __init__(self, arguments: tuple[str, ...], report: IO[bytes]) -> None:
        self.args = ("polynya", *arguments)
        self.pid = int(report.readline())
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._report = report
        self._turn = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        with self._turn:
            if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
                self.returncode = int(self._report.read())
                self._report.close()
            return self.returncode


def _end_of(
    process: WarmProcess, stdin: bytes, seconds: float, pipes: tuple[IO[bytes], ...]
) -> subprocess.CompletedProcess[bytes]:
    feed, out, err = pipes
    found: dict[IO[bytes], bytes] = {}

    def read(pipe: IO[bytes]) -> None:
        found[pipe] = pipe.read()

    def write() -> None:
        with feed, contextlib.suppress(BrokenPipeError):
            rest = memoryview(stdin)
            while rest:
                rest = rest[os.write(feed.fileno(), rest) :]

    threads = [
        threading.Thread(target=each, daemon=True)
        for each in (write, *(functools.partial(read, pipe) for pipe in (out, err)))
    ]
    for each in threads:
        each.start()
    deadline = time.monotonic() + seconds
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    if any(each.is_alive() for each in threads):
        process.kill()
        for each in threads:
            each.join()
        raise subprocess.TimeoutExpired(process.args, seconds, found.get(out), found.get(err))
    return subprocess.CompletedProcess(process.args, process.wait(seconds), found[out], found[err])


def can_run(arguments: tuple[str, ...], variables: dict[str, str]) -> bool:
    """Return False for what a new Python does: it reads its own variables at its start. Commands
    of seconds do not notice its start."""
    short = sum(map(len, (*arguments, *os.environ, *os.environ.values()))) < LONGEST_REQUEST // 8
    return (
        short
        and not HEAVY & {arguments[:1], arguments[:2]}
        and not NATIVE & {*arguments[:1], *arguments[1:2]}
        and sys.platform == "linux"
        and not any(name.startswith(("PYTHON", "LD_")) for name in variables)
    )


def can_go_on(arguments: tuple[str, ...], variables: dict[str, str]) -> bool:
    """Return True for nodes and clusters that may be forks. From Python 3.14 on, asyncio keeps the
    running task where a fork cannot forget it."""
    known = arguments[:1] == ("serve",) or arguments[:2] == ("cluster", "dev")
    return known and sys.version_info < (3, 14) and can_run(arguments, variables)


@functools.cache
def commands_of(pid: int) -> WarmCommands:
    """Return the commands of one process of tests, which may be a fork itself."""
    assert pid == os.getpid()
    return WarmCommands()


def go_on(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    streams: tuple[int, int, int],
    tag: str = "",
    module: str = PRODUCT,
) -> WarmProcess:
    """Start a command that runs until it is stopped, or until this process ends."""
    warm = commands_of(os.getpid())
    return warm.start(arguments, environment, *streams, goes_on=True, tag=tag, module=module)


def serve_arguments(script: Path) -> list[str]:
    """Return the arguments of `polynya` in a node's start.sh."""
    words = shlex.split(script.read_text().splitlines()[-1])
    assert words[2:5] == ["-m", "polynya", "serve"] and words[-1] == "$@", words
    return words[4:-1]


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        _reap()
        request, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, PER_COMMAND)
        if not request:
            return
        if not os.fork():
            requests.close()
            _watch(Request(*json.loads(request)), descriptors)
        for each in descriptors:
            os.close(each)


def _reap() -> None:
    """Wait for ended children: their usage counts as that of this process, too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Request(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    goes_on: bool
    tag: str
    priority: int
    module: str


def _watch(request: Request, descriptors: list[int]) -> NoReturn:
    """Fork the command, and tell its number, then its exit code."""
    *streams, tell = descriptors
    if request.goes_on:
        _die_with(os.getppid())
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        os.close(tell)
        if request.goes_on:
            _die_with(parent)
            _go_on(request)
        if request.module == PRODUCT and can_go_on(tuple(request.arguments), {}):
            _fork_processes(request)
        _carry_out(request, streams)
    for each in streams:
        os.close(each)
    os.write(tell, b"%d\n" % pid)
    os.write(tell, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _die_with(parent: int) -> None:
    importlib.import_module("polynya.config.core_start").die_with_parent(parent)


def _go_on(request: Request) -> None:
    """Become the leader of a session."""
    os.setsid()
    if request.priority != os.getpriority(os.PRIO_PROCESS, 0):
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, request.priority)


def _fork_processes(request: Request) -> None:
    """Fork the nodes and cores that the command starts."""
    if request.tag:
        Path("/proc/self/comm").write_text(request.tag)
    nodes = importlib.import_module("warm_nodes")
    nodes.fork_cores()
    nodes.fork_nodes()


def _carry_out(request: Request, streams: list[int]) -> NoReturn:
    code: object = 1
    try:
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        time.tzset()
        sys.argv = ["polynya", *request.arguments]
        if "RELEASE_LEVEL" in os.environ:
            importlib.import_module("release_shim.sitecustomize")
        importlib.import_module(request.module).main(request.arguments)
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
