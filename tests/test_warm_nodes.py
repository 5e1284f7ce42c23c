"""A node in a fork is as one of its own: sessions, signals, exit codes, and an end with its
starter."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from missing import left_out
from polling import wait_until
from product import TAG, ColdNode, RunningNode, alive, environment, polynya, processes_with
from warm_commands import WarmProcess, can_go_on
from worlds.dev_cluster import dev_cluster

pytestmark = pytest.mark.process
FLAGS = ("--cores", "2")
TESTS = Path(__file__).parent
PATHS = environment() | {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}"}
STARTER = """
import sys
from pathlib import Path
from product import RunningNode
node = RunningNode(Path(sys.argv[1]), ("--cores", "1"))
print(node.process.pid, flush=True)
sys.stdin.read()
"""

# a thread that Python does not count, as one that ends or that of a native library, until it may go
THREADS = """
import _thread, polling, time, warm_nodes
held, sleep, may_go = _thread.allocate_lock(), time.sleep, iter((True,))
held.acquire()
_thread.start_new_thread(held.acquire, ())
print(warm_nodes.can_fork(0.0))
def pause(seconds):
    if next(may_go, False):
        held.release()
    sleep(seconds)
polling.time.sleep = pause
print(warm_nodes.can_fork(60.0))
"""


@pytest.fixture(autouse=True)
def forks() -> None:
    if not can_go_on(("serve",), {}):
        left_out("nodes are processes of their own here")


def cores_of(node: RunningNode) -> list[psutil.Process]:
    return psutil.Process(node.process.pid).children()


def test_its_processes_are_sessions_that_signals_reach(tmp_path: Path) -> None:
    tag = secrets.token_hex(8)
    node = RunningNode(tmp_path / "data", FLAGS, **{TAG: tag})
    try:
        assert isinstance(node.process, WarmProcess)
        cores = cores_of(node)
        pids = {node.process.pid, *(core.pid for core in cores)}
        assert len(pids) == 3 and {os.getsid(pid) for pid in pids} == pids
        assert {each.pid for each in processes_with(TAG, tag)} == pids
        os.killpg(cores[0].pid, signal.SIGKILL)
        wait_until(lambda: "core died" in "".join(node.log), what="the supervisor to notice")
        wait_until(lambda: len(cores_of(node)) == 2, what="another core")
        cores = cores_of(node)
        node.kill()
        assert node.process.returncode == -signal.SIGKILL
        wait_until(lambda: not any(map(alive, cores)), what="its cores to die with it")
        wait_until(lambda: not processes_with(TAG, tag), what="nothing to be left")
    finally:
        node.close()


@pytest.mark.parametrize("kind", [RunningNode, ColdNode])
def test_it_stops_as_one_that_is_no_fork(kind: type[RunningNode], tmp_path: Path) -> None:
    node = kind(tmp_path / "data", FLAGS)
    try:
        assert isinstance(node.process, WarmProcess) == (kind is RunningNode)
        ran = polynya("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
        assert ran.code == 78 and "is in use by another node" in ran.err
        assert node.stop() == node.process.returncode == 0
        assert node.process.poll() == 0
        said = "".join(node.log)
        assert said.count("a core stopped") == 2 and "Traceback" not in said
    finally:
        node.close()


def test_a_thread_that_ends_is_waited_for_before_a_fork() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", THREADS], env=PATHS, stdout=subprocess.PIPE, check=True
    )
    assert ran.stdout.split() == [b"False", b"True"]


def test_the_nodes_of_a_cluster_are_forks(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "2") as cluster:
        for number in (1, 2):
            pid = int((cluster.node(number) / "node.pid").read_text())
            for each in (found := psutil.Process(pid), *found.children()):
                assert "warm_commands" in each.cmdline(), "a new Python costs a second"
        cluster.kill(2)
        cluster.start(2)
        cluster.wait_until_well(2)
        assert cluster.stop() == 0


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "data")],
        env=PATHS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert starter.stdout is not None
        node = psutil.Process(int(starter.stdout.readline()))
        processes = [node, *node.children()]
        assert len(processes) == 2
    finally:
        starter.kill()
        starter.communicate()
    wait_until(lambda: not any(map(alive, processes)), what="the node to end")
