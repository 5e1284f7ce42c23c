"""Progress: bars and running times on terminals, not a byte of them anywhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from polling import wait_until
from product import environment
from scripted_server import scripted

from polynya.cli.terminal import output, progress
from polynya.cli.terminal.progress import Bar, Live, spelled_seconds


def test_a_bar_says_how_much_how_fast_and_how_long_still() -> None:
    bar = Bar("appending", 1000, lambda count: f"{count:.0f}")
    assert bar.text(0.0) == "appending " + "░" * 16 + "   0%  0 of 1000, 0/s"
    bar.advance(500)
    assert (
        bar.text(10.0) == "appending " + "█" * 8 + "░" * 8 + "  50%  500 of 1000, 10 s left, 50/s"
    )
    bar.advance(600)  # more than was thought
    assert "100%" in bar.text(10.0) and "left" not in bar.text(10.0)


def test_times() -> None:
    assert [spelled_seconds(seconds) for seconds in (0.9, 59.9, 61, 3600, 7505)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h 0 min",
        "2 h 5 min",
    ]


def test_notices_go_above_the_line_and_the_line_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.001)
    screen = io.StringIO()
    with Live(lambda seconds: "working", stream=screen, shown=True):
        wait_until(lambda: "working" in screen.getvalue(), what="the line to be drawn")
        output.notice("a notice")
    assert "\r\x1b[Ka notice\n" in screen.getvalue()
    assert screen.getvalue().endswith(("\r\x1b[K", "a notice\n"))
    assert output.above is None


def test_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.001)
    screen, inner = io.StringIO(), io.StringIO()
    with (
        Live(lambda seconds: "outer", stream=screen, shown=True),
        Live(lambda seconds: "inner", stream=inner, shown=True),
    ):
        wait_until(lambda: "outer" in screen.getvalue(), what="the line to be drawn")
    assert inner.getvalue() == ""


@pytest.mark.process
@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_gets_a_bar(tmp_path: Path, terminal: bool) -> None:
    file = tmp_path / "records"
    file.write_bytes(b'{"n": "%s"}\n' % (b"x" * 1000) * 5000)
    ours, theirs = pty.openpty()
    stream = (200, {"content-type": "application/json", "stream-next-offset": "0_0"}, b"")
    with (
        scripted(stream, (200, {"stream-next-offset": "1_1"}, b"")) as server,
        file.open() as stdin,
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", (
                "from polynya.cli import main; from polynya.cli.terminal import progress; "
                "progress.FIRST_SECONDS = 0.001; main()"
            ),
             "append", "s"],
            stdin=stdin, stdout=subprocess.PIPE, stderr=theirs if terminal else subprocess.PIPE, env=environment(POLYNYA_SERVER=server.url, TERM="xterm"),
        )  # fmt: skip
        os.close(theirs)
        if terminal:
            said = b""
            while True:
                try:
                    said += os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
        else:
            assert process.stderr is not None
            said = process.stderr.read()
        process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert ("█".encode() in said or "░".encode() in said) is terminal
    assert b"appended 5,000 records to s" in said
    assert (b"\x1b" in said) is terminal
