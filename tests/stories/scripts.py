"""Story scripts in files: command lines, each followed by its indented response. `REWRITE=1`
rewrites the responses."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path


def scripts_of(test: str) -> list[Path]:
    """The scripts beside a test file."""
    return sorted((Path(test).parent / "scripts").glob("*.txt"))


def traced(text: str, step: Callable[[list[str]], list[str]]) -> str:
    """The script with its trace: `step` carries out the words of a line."""
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {answer}" for answer in step(shlex.split(line))]
    return "\n".join(lines) + "\n"


def check_script(path: Path, run: Callable[[str], str]) -> None:
    text = path.read_text()
    trace = run(text)
    if os.environ.get("REWRITE") == "1":
        path.write_text(trace)
    else:
        assert trace == text
