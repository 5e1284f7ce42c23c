"""Checks of the nodes' logs in a run: errors that no injected fault explains."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.nodes import odd_of  # noqa: E402  (not a part of the package)

CRASH = """ts=1 level=info msg="ready"
Traceback (most recent call last):
  File "/a/first.py", line 1, in main
    run()
  File "/a/last.py", line 2, in run
    write()
{}
ts=2 level=info msg="stopped"
"""


def test_a_traceback_is_reported_with_its_last_place_and_its_error() -> None:
    assert odd_of(CRASH.format("KeyError: 'stream'")) == [
        "Traceback (most recent call last): | "
        "File \"/a/last.py\", line 2, in run | KeyError: 'stream'"
    ]


def test_a_failing_disk_explains_a_traceback() -> None:
    assert odd_of(CRASH.format("OSError: [Errno 28] No space left on device")) == []


def test_a_line_of_the_log_is_reported_as_it_is() -> None:
    line = 'level=error msg="failed" traceback="Traceback (most recent call last): KeyError"'
    assert odd_of(line) == [line]
    assert odd_of('level=error msg="failed" error="OSError: [Errno 5] AssertionError"') == []


def test_a_log_that_ends_in_a_traceback() -> None:
    assert odd_of('Traceback (most recent call last):\n  File "/a.py", line 1, in main') == [
        'Traceback (most recent call last): | File "/a.py", line 1, in main'
    ]
