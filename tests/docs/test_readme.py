"""What the README shows is what happens: its sessions are played against a node, in order, and must
print what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import ports_in_a_row
from product import environment, running_node

README = Path(__file__).parent.parent.parent / "README.md"
SESSIONS = re.findall(r"```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL)

pytestmark = pytest.mark.process


def steps() -> list[tuple[str, str]]:
    """(command, what it prints) of all sessions."""
    found: list[tuple[str, str]] = []
    for line in "".join(SESSIONS).splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ ").strip(), ""))
        else:
            command, output = found.pop()
            found.append((command, output + line))
    return found


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Variables with which `polynya` is the product under test."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "polynya").write_text(f'#!/bin/sh\nexec {sys.executable} -m polynya "$@"\n')
    (tools / "polynya").chmod(0o755)
    known = environment()
    return known | {"PATH": f"{tools}:{known['PATH']}"}


def test_the_sessions_print_what_they_say(tmp_path: Path, settings: dict[str, str]) -> None:
    assert shutil.which("curl") and len(steps()) >= 12
    with running_node(tmp_path / "data") as node:
        settings["POLYNYA_SERVER"] = node.url
        for command, output in steps():
            here = command.replace("http://127.0.0.1:4437", node.url).replace(
                "curl -s", "curl -sS --fail"
            )
            ran = subprocess.run(
                ["bash", "-c", here],
                capture_output=True,
                text=True,
                env=settings,
                timeout=200,
                check=False,
            )
            assert ran.returncode == 0, f"$ {here}\n{ran.stdout}{ran.stderr}"
            assert ran.stdout.rstrip("\n") == output.rstrip("\n"), f"$ {command}\n{ran.stderr}"


def test_the_minute_of_a_cluster_can_be_pasted(tmp_path: Path, settings: dict[str, str]) -> None:
    block = re.search(
        r"## Three nodes in a minute\n\n```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL
    )
    assert block is not None
    with ports_in_a_row(30) as port:
        script = re.sub("44[345]7", lambda found: str(port + int(found[0]) - 4437), block[1])
        script = script.replace("cluster dev", f"cluster dev --listen 127.0.0.1:{port}")
        settings["POLYNYA_SERVER"] = f"http://127.0.0.1:{port}"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=settings,
            timeout=120,
            check=False,
        )
    assert '{"n": 1}\n{"n": 2}\n' in ran.stdout, (
        f"{ran.stdout}{ran.stderr}{(tmp_path / 'cluster.log').read_text()}"
    )
