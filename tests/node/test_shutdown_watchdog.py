"""Stories of the end of a core: it comes in bounded time, and the log says what held it up."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process
CORE = """
import asyncio, os, signal, sys, time
import uvloop
from polynya.node import core_process, shutdown_watchdog
from polynya.observability import logs

class Assembly:
    def __init__(self, start, storage):
        self.about = os.environ["HANGS"]

    async def start(self):
        if self.about != "blocked":
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        if self.about == "starting":
            await asyncio.Event().wait()

    async def meet(self):
        if self.about == "blocked":
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def stop(self):
        if self.about == "stopping":
            await self.wait_for_ever()
        elif self.about == "blocked":
            time.sleep(60)
        elif self.about == "disk":
            raise OSError(5, "Input/output error")

    async def wait_for_ever(self):
        await asyncio.Event().wait()

    def reload(self):
        pass

class Start:
    core = 0

shutdown_watchdog.END_SECONDS = 2.0 if os.environ["HANGS"] in ("stopping", "blocked") else 30.0
logs.setup("info", "json", core=0)
core_process.Assembly, core_process.watch_parent, core_process.report_ready = Assembly, lambda loop: None, lambda start: None
code = uvloop.run(core_process._serve(Start, None))
print("a clean end")
sys.exit(code)
"""


def ended(hangs: str) -> tuple[int, dict[str, list[str]], str]:
    """Return the exit code, the last line of the log, and the output."""
    environ = os.environ | {"HANGS": hangs, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", CORE],
        check=False,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, json.loads(done.stderr.splitlines()[-1]), done.stdout


def test_a_start_that_hangs_is_broken_off_by_a_stop():
    code, line, out = ended("starting")
    assert (code, line["msg"], out) == (0, "a core stopped", "a clean end\n")


def test_what_a_stop_waits_for_in_vain_is_said_and_the_process_ends():
    code, line, out = ended("stopping")
    assert (code, line["level"], out) == (70, "critical", "")
    (waits,) = [task for task in line["tasks"] if "_serve" in task]
    frames = [frame.split()[-1] for frame in waits.split(" > ")]
    assert frames[-4:] == ["_serve", "stop", "wait_for_ever", "wait"]


def test_a_stop_that_blocks_its_loop_ends_too_and_says_where_it_stands():
    code, line, out = ended("blocked")
    assert (code, line["level"], out) == (70, "critical", "")
    (main,) = [thread for thread in line["threads"] if thread.startswith("MainThread")]
    assert main.split()[-1] == "stop"


def test_a_disk_that_fails_as_the_core_stops_is_told_by_the_exit_code():
    code, line, out = ended("disk")
    assert (code, line["level"], out) == (74, "critical", "")
    assert line["error"] == "[Errno 5] Input/output error"
