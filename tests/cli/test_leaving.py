"""A command's process ends with the command's code, whatever its libraries' threads do to an
interpreter that is taken apart."""

from __future__ import annotations

import subprocess
import sys

import pytest
from product import environment

pytestmark = pytest.mark.process

COMMAND = """
import atexit, os, sys, types
from polynya.cli import app

class Thread:
    def __del__(self, abort=os.abort):
        abort()

def run(*given, command=app.cli.main, **more):
    sys.modules[{library!r}] = types.ModuleType("stands for it")
    atexit.register(print, "all others have ended")
    sys.stdout.write("said ")
    return command(*given, **more)

thread = Thread()  # what it holds is let go of when the interpreter is taken apart
app.cli.main = run
app.main({arguments!r})
"""


def ran(*arguments: str, library: str = "obstore") -> tuple[int, str]:
    code = COMMAND.format(library=library, arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("config", "check"), 0),
        (("config", "check", "--config", "/nowhere.toml"), 2),
        (("store", "wipe", "--root", "/nowhere", "--yes"), 1),
        (("ls", "--server", "http://127.0.0.1:1"), 3),
    ],
)
def test_the_code_is_that_of_the_command(arguments: tuple[str, ...], code: int) -> None:
    ended, said = ran(*arguments)
    assert ended == code
    assert said.startswith("said ") and said.endswith("all others have ended\n")


def test_without_the_library_an_end_is_as_ever() -> None:
    assert ran("config", "check", library="another")[0] == -6, "then this test proves nothing"


def test_a_thread_that_still_waits_for_stdin_aborts_nothing() -> None:
    """The server is not there, and who pipes records in has not ended: the interpreter would want
    the buffer that the thread holds."""
    code = "import sys, threading, time\nfrom polynya.cli import app\n"
    code += (
        "threading.Thread(target=sys.stdin.buffer.readline, daemon=True).start()\ntime.sleep(0.2)\n"
    )
    code += "app.main(['ls', '--server', 'http://127.0.0.1:1'])"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 3 and "no response from" in said and "Fatal" not in said
