"""The examples of docs/embedded.md, run in order. They print what their comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from product import environment

import polynya.embedded

PAGE = (Path(__file__).parent.parent.parent / "docs" / "embedded.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
MARK = "=== end of an example ==="


@pytest.mark.process
def test_the_examples_print_what_they_say(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 5
    script = "".join(f"{example}\nprint({MARK!r})\n" for example in EXAMPLES)
    command = [sys.executable, "-c", script]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for example, said in zip(EXAMPLES, ran.stdout.split(MARK + "\n"), strict=False):
        assert ", ".join(said.splitlines()) == ", ".join(PRINTS.findall(example)), (
            f"{example}\n{said}"
        )


def test_the_page_names_every_public_method_and_error() -> None:
    for kind in (polynya.embedded.Log, polynya.embedded.LogReader, polynya.embedded.Cursor):
        names = [name for name in dir(kind) if not name.startswith("_")]
        unnamed = {"path", "close", "create", "drop_cursor", "name", "topic", "commit", "cuts"}
        assert not [name for name in names if name not in unnamed and f"{name}" not in PAGE]
    errors = {
        "LogError",
        "LogFailed",
        "LogFull",
        "LogLocked",
        "LimitExceeded",
        "RecordTrimmed",
        "RecordMissing",
        "CorruptData",
    }
    assert not [name for name in errors if f"`{name}`" not in PAGE]
