"""The product as its users run it: a node as a process of its own, and the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from polling import wait_until
from warm_commands import TAG, WarmProcess, can_go_on, can_run, commands_of, go_on

SOURCE = Path(__file__).parent.parent / "src"
SHIM = Path(__file__).parent / "release_shim"
# a command behind it dies when this process is killed
WITH_US = (
    sys.executable,
    "-P",
    "-m",
    "polynya.config.core_start",
    str(os.getpid()),
)
START_SECONDS = 60.0
STOP_SECONDS = 60.0


def environment(**more: str) -> dict[str, str]:
    """Return the process environment without settings and contexts of Polynya, with this source
    first. RELEASE_LEVEL: as another release."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYNYA_")}
    paths = (SHIM, SOURCE) if "RELEASE_LEVEL" in more else (SOURCE,)
    path = os.pathsep.join(map(str, paths))
    return {**kept, "PYTHONPATH": path, "XDG_CONFIG_HOME": str(SOURCE / "no-config"), **more}


def processes_with(name: str, value: str) -> list[psutil.Process]:
    """Return every living process with this in its environment, and forks with this tag."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_one = process.environ().get(name) == value or comm_of(process.pid) == value[:15]
            if is_one and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def comm_of(pid: int) -> str:
    """Return the name that a process gave itself, of 15 bytes, or "" once it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


class CommandProcess:
    """A running command of the product. `log` is its output, line by line.

    It runs in a fork of a warm process if possible (`warm_commands`), unless `is_cold`."""

    is_cold = False

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = self._started(arguments, variables)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _started(
        self, arguments: tuple[str, ...], variables: dict[str, str]
    ) -> subprocess.Popen[str] | WarmProcess:
        if self.is_cold or not can_go_on(arguments, variables):
            return subprocess.Popen(
                [*WITH_US, sys.executable, "-m", "polynya", *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(**variables), text=True, start_new_session=True,
            )  # fmt: skip
        read, write = os.pipe()
        with open(os.devnull) as nothing, os.fdopen(write, "wb"):
            streams = (nothing.fileno(), write, write)
            process = go_on(arguments, environment(**variables), streams, variables.get(TAG, ""))
        process.stdout = os.fdopen(read, encoding="utf-8")
        return process

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)

    def end_reading(self) -> None:
        """Close the output of an ended process."""
        self._reader.join(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


class RunningNode(CommandProcess):
    """A node: `url` and `admin` are its ports."""

    def __init__(self, data: Path, flags: tuple[str, ...], **variables: str) -> None:
        super().__init__(
            "serve", "--listen", "127.0.0.1:0", "--data", str(data), *flags, **variables
        )
        self._wait_for_line(
            r"  look    (\S+)"
        )  # the end of the banner: all of it is in the log now
        self.url = self._wait_for_line(r"listening on (\S+)")
        self.admin = self._wait_for_line(r"admin on (\S+)")
        found = re.search(r"^Kafka on (\S+)", "".join(self.log), re.MULTILINE)
        self.kafka = found[1] if found else ""

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for exit, drain its output, return the exit code."""
        code = self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        return code

    def kill(self) -> None:
        """Send SIGKILL to the supervisor and wait until its cores have died and released their ports."""
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children()
        self.process.kill()
        self.process.wait(STOP_SECONDS)
        wait_until(lambda: not any(map(alive, children)), what="the cores to be gone")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self.end_reading()

    def _wait_for_line(self, pattern: str) -> str:
        def look() -> str | None:
            found = re.search(pattern, "".join(self.log))
            if found is None and self.process.poll() is not None:
                self._reader.join(STOP_SECONDS)
                raise AssertionError("the node ended:\n" + "".join(self.log))
            return found[1] if found else None

        return wait_until(look, what=f"the node to say {pattern}", seconds=START_SECONDS)


class ColdNode(RunningNode):
    """A node and cores that are new processes, as those of users."""

    is_cold = True


@contextmanager
def running_node(data: Path, *flags: str, **variables: str) -> Iterator[RunningNode]:
    """Run a node on free ports and the folder `data` until `with` ends."""
    node = RunningNode(data, flags, **variables)
    try:
        yield node
    finally:
        node.close()


def polynya(
    *arguments: str,
    server: str = "",
    stdin: bytes | None = None,
    seconds: float = 60.0,
    **variables: str,
) -> Ran:
    """Run the command line to its end: in a fork if possible (`warm_commands`)."""
    more = {"POLYNYA_SERVER": server, **variables} if server else variables
    if can_run(arguments, more):
        warm = commands_of(os.getpid())
        done = warm.run(arguments, environment(**more), stdin or b"", seconds)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
    done = subprocess.run(
        [sys.executable, "-m", "polynya", *arguments],
        input=stdin if stdin is not None else b"",
        capture_output=True,
        env=environment(**more),
        timeout=seconds,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """Raise the priority of processes started in this context, where permitted."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


def alive(process: psutil.Process) -> bool:
    """Report whether a process may still hold files, locks and ports."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Ran:
    """The result of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"Ran(code={self.code}, out={self.out!r}, err={self.err!r})"
