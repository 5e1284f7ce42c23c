"""The checks of tests in this process can fail: real sleeps, and shared state that is not given
back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONFTEST = """
from pathlib import Path
from shared_state import SharedState
from sleep_guard import SleepGuard

def pytest_configure(config):
    config.addinivalue_line("markers", "process: starts processes")
    config.pluginmanager.register(SleepGuard(Path(__file__).parent))
    config.pluginmanager.register(SharedState())
"""


def run(folder: Path, **files: str) -> tuple[int, str]:
    """Run planted tests in a process of their own; return its exit code and output."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    paths = f"pythonpath={TESTS} {TESTS.parent / 'src'}"
    ended = subprocess.run(
        [*command, f"--rootdir={folder}", "-c", "/dev/null", "-o", paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ended.returncode, ended.stdout + ended.stderr


SLEEPS = """
import asyncio, threading, time
import pytest
from sim.loop import run_simulated
from polling import wait_for, wait_until

def test_blocking():
    time.sleep(0.001)

def test_on_a_loop():
    asyncio.run(nap())

def test_in_a_task_whose_error_nobody_sees():
    async def main():
        await asyncio.gather(nap(), return_exceptions=True)
    asyncio.run(main())

def test_in_a_thread():
    thread = threading.Thread(target=time.sleep, args=(0.001,))
    other = threading.Thread(target=lambda: time.sleep(0.001))
    for each in (thread, other):
        each.start()
        each.join()

def test_an_event_that_does_not_come():
    threading.Event().wait(0.001)

@pytest.fixture
def slow():
    time.sleep(0.001)

def test_in_a_fixture(slow):
    pass

async def nap():
    await asyncio.sleep(0.001)

# --- allowed

def test_virtual():
    run_simulated(nap())

def test_no_time():
    time.sleep(0)
    asyncio.run(asyncio.sleep(0))

def test_an_event_that_comes():
    event = threading.Event()
    thread = threading.Thread(target=event.set)
    thread.start()
    assert event.wait(60) and not threading.Event().wait(0)
    thread.join()

def test_polling():
    found = iter([0, 1, 0, 1])
    wait_until(lambda: next(found), what="one", pause=0.001)
    asyncio.run(wait_for(lambda: next(found)))

@pytest.mark.process
def test_of_processes():
    time.sleep(0.001)
"""


@pytest.mark.process
def test_a_real_sleep_fails_its_test(tmp_path: Path) -> None:
    code, said = run(tmp_path, test_sleeps=SLEEPS)
    assert code == 1 and "5 failed, 5 passed, 1 error" in said, said
    assert "test_sleeps.py:8: time.sleep(0.001); wait for what is to happen: an event" in said
    failures = said.partition("short test summary")[0]  # which in CI repeats them whole
    assert failures.count("asyncio.sleep(0.001); wait for") == 2


LEAVES = """
import asyncio, gc, os, signal, sys
import pytest

def test_clean(monkeypatch):
    monkeypatch.setenv("LEFT", "for a while")

def test_leaves():
    os.environ["LEFT"] = "here"
    sys.path.append("left.zip")
    gc.disable()
    os.chdir("/")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    os.environ.pop("GONE", None)

def test_last():
    pass
"""
FINDS_NOTHING = """
import gc, os, signal, sys

def test_all_is_given_back():
    assert "LEFT" not in os.environ and "left.zip" not in sys.path and gc.isenabled()
    assert os.getcwd() != "/" and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert os.environ["GONE"] == "it was here" and "MALLOC_ARENA_MAX" not in os.environ
"""


@pytest.mark.process
def test_what_a_module_leaves_fails_it_and_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "it was here")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    code, said = run(tmp_path, test_a=LEAVES, test_b=FINDS_NOTHING)
    assert code == 1 and "4 passed, 1 error" in said, said
    for part in (
        "os.environ['LEFT'] was absent and is 'here' (since test_a.py::test_leaves)",
        "os.environ['GONE'] was 'it was here' and is absent",
        "sys.path was",
        "gc.isenabled() was True and is False",
        "working directory was",
        "handler of SIGUSR1 was",
        "event loop policy was",
    ):
        assert part in said, said


STARTS_A_JVM = """
import os, sys
import pytest

@pytest.mark.spark
def test_spark():
    os.environ["MALLOC_ARENA_MAX"] = "2"
    sys.path.append("left.zip")

def test_last():
    pass
"""


@pytest.mark.process
def test_what_a_jvm_needs_is_given_back_for_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "it was here")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    code, said = run(tmp_path, test_a=STARTS_A_JVM, test_b=FINDS_NOTHING)
    assert code == 0, said
