"""The tutorial of docs/snapshots.md runs as it stands, and its document stays bounded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from product import environment, running_node

PAGE = (Path(__file__).parent.parent.parent / "docs" / "snapshots.md").read_text("utf-8")
TUTORIAL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
RETENTION = re.findall(r"curl -X PUT (\S+) -d '(.*)'", PAGE)


def ran(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.process
def test_a_collaborative_document(tmp_path: Path) -> None:
    (tutorial,), ((url, body),) = TUTORIAL, RETENTION
    with running_node(tmp_path / "data") as node:
        code, target = (text.replace("http://127.0.0.1:4437", node.url) for text in (tutorial, url))
        assert ran(code) == PRINTS.findall(tutorial)
        assert httpx.put(target, content=body).status_code == 200
        assert ran(code) == PRINTS.findall(tutorial), "it goes on, and the stream is trimmed"
        kept = httpx.get(target).json()
    assert kept["retained_offset"] > "0000000000000001", "to the oldest snapshot that can be read"
