"""The contract of a core process with its supervisor, from the side of the process."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from polynya.config.core_start import EXIT_STORAGE, Address, CoreStart
from polynya.config.model import Config
from polynya.config.node_identity import NodeIdentity
from polynya.node import core_process

TESTS = Path(__file__).parents[1]


def begin(data: Path, supervisor_pid: int) -> tuple[subprocess.Popen[bytes], int]:
    """A fake core with this process as its supervisor, and the pipe that it reports on."""
    report, report_fd = os.pipe()
    start = CoreStart(
        config=Config(data=str(data), cores=1, groups=1),
        identity=NodeIdentity(cluster_id="c", groups=1, cores=1, created_ms=0),
        core=0,
        start_id="s",
        listeners={"http": Address("127.0.0.1", 1), "admin": Address("127.0.0.1", 2)},
        run_directory=str(data),
        supervisor_pid=supervisor_pid,
        report_fd=report_fd,
    )
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join([str(TESTS), *sys.path]))
    process = subprocess.Popen(
        [sys.executable, "-m", "worlds.fake_core"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[report_fd],
        env=environ,
    )
    os.close(report_fd)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(start) + b"\n")
    process.stdin.flush()
    return process, report


@pytest.mark.process
def test_a_core_reports_and_ends_when_its_supervisor_lets_go_of_the_pipe(tmp_path):
    process, report = begin(tmp_path, os.getpid())
    assert os.read(report, 10) == b"R"
    assert os.read(report, 10) == b"", "the pipe is closed after the report"
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    os.close(report)


@pytest.mark.process
def test_a_core_whose_supervisor_died_before_it_came_up_does_not_start(tmp_path):
    process, report = begin(tmp_path, os.getppid())
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and b"the supervisor has exited" in error
    assert os.read(report, 10) == b""
    assert not list(tmp_path.iterdir())
    os.close(report)


@pytest.mark.process
def test_a_wrapped_command_keeps_its_arguments_and_dies_unborn_without_its_parent():
    command = [sys.executable, "-m", "polynya.config.core_start"]
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    echoed = subprocess.run(
        [*command, str(os.getpid()), "echo", "a b", "--c"],
        check=False,
        env=environ,
        capture_output=True,
        timeout=60,
    )
    assert echoed.stdout == b"a b --c\n"
    orphan = subprocess.run(
        [*command, str(os.getppid()), "echo", "x"],
        check=False,
        env=environ,
        capture_output=True,
        timeout=60,
    )
    assert orphan.returncode == 1 and orphan.stdout == b""


def test_a_core_whose_disk_fails_at_its_start_says_so(monkeypatch):
    def fails(start):
        raise OSError(errno.EIO, "told so")

    log = SimpleNamespace(level="info", format="text")
    monkeypatch.setattr(
        core_process,
        "read_start",
        lambda: SimpleNamespace(core=3, config=SimpleNamespace(log=log, scheduling="normal")),
    )
    monkeypatch.setattr(core_process, "_open", fails)
    monkeypatch.setattr(core_process, "keep_heap_small", lambda: None)
    said: list[str] = []
    monkeypatch.setattr(core_process.logs, "setup", lambda *given, **named: None)
    monkeypatch.setattr(core_process.logs, "say_end", said.append)
    monkeypatch.setattr(core_process.signal, "signal", lambda *given: None)
    assert core_process.main() == EXIT_STORAGE
    assert said == ["core 3 cannot read or write its journal: [Errno 5] told so"]
